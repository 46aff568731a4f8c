"""The process of one stage of a checkup: `python -m xinheng.conformance.doctor.stage STAGE SUBJECT FILE`."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

from .symptom import Findings


def main(stage: str, subject: str, file: str) -> None:
    """Run a stage and write what it finds to a file of JSON."""
    faulthandler.enable()
    findings = Findings()
    if stage == "loading":
        from .loading import examine_loading

        examine_loading(subject, findings)
    elif stage == "handling":
        from .handling import examine_handling

        examine_handling(subject, findings)
    else:
        from .kernels import examine_kernels

        examine_kernels(subject, findings)
    Path(file).write_text(findings.model_dump_json(), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
