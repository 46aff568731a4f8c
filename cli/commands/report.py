"""`xinheng report`: look at reports and certificates, check that they are genuine, and sign them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Assignments, Json, settings

if TYPE_CHECKING:
    from xinheng.core.certificate import Certificate

app = typer.Typer(no_args_is_help=True, help="Look at conformance reports, check and sign them.")

File = Annotated[Path, typer.Argument(help="A report, or the folder it is in.")]


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="A report, the folder it is in, or a certificate.")],
    trusted: Annotated[
        list[str] | None,
        typer.Option("--trusted", metavar="KEY", help="A public key that may have signed: its text or a PEM file."),
    ] = None,
    set: Assignments = None,
    json: Json = False,
) -> None:
    """Check that a report or certificate is as it was written, and who signed it.

    Keys of the setting runtime.trusted_keys count too. Where any key is trusted, one of them must have signed.
    """
    from xinheng.conformance.report import report_file
    from xinheng.core.errors import SignatureError
    from xinheng.core.signature import read_document
    from xinheng.core.signature import verify as check

    from ..output import print_json

    runtime, _ = settings(set)
    path = report_file(file)
    document = read_document(path)
    keys = [*(trusted or []), *runtime.trusted_keys]
    try:
        signature = check(document, keys)
    except SignatureError as error:
        raise SignatureError(f"{path}: {error}") from None
    signer = signature.key if signature else None
    if json:
        print_json({"file": path, "digest": document["digest"], "signed_by": signer, "trusted": bool(keys)})
        return
    print(f"{path}: as it was written, {document['digest']}")
    if signer is None:
        print("nobody signed it: whoever changes it can make a new digest")
    else:
        told = "a trusted key" if keys else "name it by --trusted, or in runtime.trusted_keys, if you trust it"
        print(f"signed by {signer} ({told})")


@app.command()
def sign(
    folder: File,
    key: Annotated[Path, typer.Option(help="A PEM file with an Ed25519 private key.")],
    install: Annotated[
        bool, typer.Option("--install", help="Copy the certificate to the folder of runtime.certificates.")
    ] = False,
    set: Assignments = None,
    json: Json = False,
) -> None:
    """Sign a report and the certificate that follows from it.

    'openssl genpkey -algorithm ed25519 -out key.pem' makes a key, 'openssl pkey -in key.pem -pubout -out key.pub' its
    public part, which runtime.trusted_keys takes.
    """
    from xinheng.conformance.report import sign_report
    from xinheng.core.certificate import Certificate
    from xinheng.core.errors import CertificateError
    from xinheng.core.signature import read_document

    from ..output import print_json

    runtime, _ = settings(set)
    paths: dict[str, Any] = dict(sign_report(folder, key))
    document = read_document(paths["json"])
    if install:
        if "certificate" not in paths:
            raise CertificateError(f"{paths['json']}: no level is reached in it, so there is no certificate to install")
        text = paths["certificate"].read_text(encoding="utf-8")
        made = Certificate.read(read_document(paths["certificate"]), str(paths["certificate"]))
        runtime.certificates.mkdir(parents=True, exist_ok=True)
        paths["installed"] = runtime.certificates / _file_name(made)
        paths["installed"].write_text(text, encoding="utf-8")
    if json:
        print_json({"signed_by": document["signature"]["key"], "files": paths})
        return
    print(f"signed by {document['signature']['key']}")
    for path in paths.values():
        print(path)


@app.command()
def show(
    file: File,
    write: Annotated[Path | None, typer.Option(metavar="DIR", help="Write all forms of it into a folder.")] = None,
    json: Json = False,
) -> None:
    """Show the summary of a report, or write its HTML, Markdown and JUnit forms anew."""
    from xinheng.conformance.report import read_report, report_markdown, write_report

    from ..output import print_json

    report = read_report(file)
    paths = write_report(report, write) if write is not None else {}
    if json:
        facts = {"device": report.device.name, "level": report.level, "emulated": report.device.emulated}
        print_json({**facts, "figures": report.figures.model_dump(), "problems": report.problems, "files": paths})
        return
    if paths:
        for path in paths.values():
            print(path)
        return
    print(report_markdown(report), end="")


def _file_name(certificate: Certificate) -> str:
    """A name that is the same for what the next certificate of this device and mode replaces."""
    import re

    device, mode = certificate.device, certificate.mode
    parts = [device.spec.partition(":")[0], device.name, device.driver, mode.numerics, *sorted(mode.overrides)]
    return "-".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in parts if part) + ".json"
