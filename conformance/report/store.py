"""Reports as files: one folder per report, with a form for each kind of reader."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from xinheng.core.errors import FormatError, SignatureError
from xinheng.core.signature import read_document, sign, verify

from .html import report_html
from .junit import report_junit
from .markdown import report_markdown
from .model import KIND, VERSION, Report

FILES = {
    "json": "report.json",
    "html": "report.html",
    "markdown": "report.md",
    "junit": "junit.xml",
    "certificate": "certificate.json",
}
"""What a folder holds; the certificate only where a level is reached."""


def write_report(report: Report, folder: Path, key: Path | None = None) -> dict[str, Path]:
    """Write a report into a folder, in all its forms, and return their paths by form.

    Args:
        folder: it is made if it is not there; files of an earlier report in it are replaced.
        key: a PEM file with an Ed25519 private key, to sign report and certificate with.

    Raises:
        SettingsError: the key cannot be read.
    """
    document = _signed(report.document(), key)
    shown = Report.model_validate(document)
    texts = {
        "json": _text(document),
        "html": report_html(shown),
        "markdown": report_markdown(shown),
        "junit": report_junit(shown),
    }
    if report.level:
        texts["certificate"] = _text(_signed(shown.certificate().document(), key))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILES["certificate"]).unlink(missing_ok=True)
    paths = {form: folder / FILES[form] for form in texts}
    for form, path in paths.items():
        path.write_text(texts[form], encoding="utf-8")
    return paths


def read_report(path: Path) -> Report:
    """Read the JSON form of a report, a file or the folder it is in.

    Whether it is genuine is a question for `xinheng.core.signature.verify`.

    Raises:
        FormatError: it is no report, or one of another version of the format; the message names both.
    """
    path = report_file(path)
    return _report(read_document(path), path)


def sign_report(folder: Path, key: Path) -> dict[str, Path]:
    """Sign the report in a folder and write all its forms anew; the paths of `write_report`.

    Raises:
        FormatError: there is no report in it.
        SignatureError: the report was changed after it was written.
        SettingsError: the key cannot be read.
    """
    path = report_file(folder)
    document = read_document(path)
    report = _report(document, path)
    try:
        verify(document)
    except SignatureError as error:
        raise SignatureError(f"{path}: {error}; it is not signed") from None
    return write_report(report, path.parent, key)


def report_file(path: Path) -> Path:
    """The JSON form of a report, given it or its folder."""
    return path / FILES["json"] if path.is_dir() else path


def _report(document: Mapping[str, Any], path: Path) -> Report:
    kind, version = document.get("kind"), document.get("version")
    if kind != KIND:
        raise FormatError(f"{path}: field 'kind' is {kind!r}, so this is no report; one has {KIND!r}")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        remedy = "install a newer xinheng" if newer else "run the suite again"
        raise FormatError(f"{path}: report format {version!r}, and this xinheng reads format {VERSION}; {remedy}")
    try:
        return Report.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise FormatError(f"{path}: field {where!r} of the report: {first['msg']}") from None


def _signed(document: dict[str, Any], key: Path | None) -> dict[str, Any]:
    return document if key is None else sign(document, key)


def _text(document: Mapping[str, Any]) -> str:
    """A document as a file holds it: sorted and indented, so that two of them can be compared line by line."""
    return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
