"""Reports of conformance runs: what they hold, and their forms for machines and for people."""

from __future__ import annotations

from .comparison import Change, Comparison
from .figures import Figures, Spread
from .html import comparison_html, report_html
from .junit import report_junit
from .markdown import report_markdown
from .model import DeviceHeader, LedgerEntry, LevelResult, Missing, Modes, Report, Scope, Selftest
from .store import read_report, report_file, sign_report, write_report
from .view import groups, headline, replay

__all__ = [
    "Change",
    "Comparison",
    "DeviceHeader",
    "Figures",
    "LedgerEntry",
    "LevelResult",
    "Missing",
    "Modes",
    "Report",
    "Scope",
    "Selftest",
    "Spread",
    "comparison_html",
    "groups",
    "headline",
    "read_report",
    "replay",
    "report_file",
    "report_html",
    "report_junit",
    "report_markdown",
    "sign_report",
    "write_report",
]
