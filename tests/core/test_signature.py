"""Canonical JSON, digests and signatures: an edit shows, and a new digest without the key does not help."""

from __future__ import annotations

import base64
import math
import random
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from xinheng.core.errors import FormatError, SettingsError, SignatureError
from xinheng.core.signature import canonical, digest, plain, public_key, read_document, sign, verify

from ..keys import make_key

DOCUMENT: dict[str, Any] = {"kind": "test", "numbers": [1, 2.5, 1e-30], "inner": {"b": None, "a": "芯"}}


# ------------------------------------------------------------------------------------------------------ canonical form
@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"b": 1, "a": [1.0, 0.1, 1e300]}, '{"a":[1.0,0.1,1e+300],"b":1}'),
        ({"ä": "\n\u2028", "Z": True, "z": None}, '{"Z":true,"z":null,"ä":"\\n\u2028"}'),
        ([], "[]"),
    ],
)
def test_there_is_one_spelling(data: Any, text: str) -> None:
    assert canonical(data) == text.encode()


def test_the_order_of_keys_says_nothing() -> None:
    pairs = [(f"k{i}", {"x": i, "y": [i]}) for i in range(20)]
    shuffled = random.Random(1).sample(pairs, len(pairs))
    assert canonical(dict(pairs)) == canonical(dict(shuffled))


def test_floats_read_back_exactly() -> None:
    values = [random.Random(2).uniform(-1, 1) * 10.0**e for e in range(-300, 300, 7)]
    import json

    assert json.loads(canonical(values)) == values


def test_what_json_cannot_hold_becomes_text() -> None:
    assert plain({"a": (math.inf, -math.inf), "d": date(2026, 1, 2), "p": Path("x"), 3: {2, 1}}) == {
        "a": ["inf", "-inf"],
        "d": "2026-01-02",
        "p": "x",
        "3": [1, 2],
    }
    assert plain(math.nan) == "nan"
    assert plain("a\ud800b \U0001f600") == "a\ufffdb \U0001f600"
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"a": math.inf})


# ----------------------------------------------------------------------------------------------------------- signatures
def test_a_signed_document_tells_its_signer(tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    signed = sign(DOCUMENT, private)
    assert signed["digest"] == digest(DOCUMENT)
    signature = verify(signed, [str(public)])
    assert signature is not None and signature.key == public_key(str(public))
    assert verify(signed, [signature.key]) == verify(signed) == signature
    assert sign(signed, private) == signed  # Ed25519 is deterministic, and the old signature is replaced


def test_an_edit_shows(tmp_path: Path) -> None:
    signed = sign(DOCUMENT, make_key(tmp_path)[0])
    for change in ({"numbers": [1, 2.5, 1.1e-30]}, {"new": 1}, {"kind": "other"}):
        with pytest.raises(SignatureError, match="does not match its digest"):
            verify({**signed, **change})


def test_a_new_digest_without_the_key_does_not_help(tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    edited = {**sign(DOCUMENT, private), "numbers": [9]}
    edited["digest"] = digest(edited)
    with pytest.raises(SignatureError, match="signature does not belong to the content"):
        verify(edited)
    stripped = {name: value for name, value in edited.items() if name != "signature"}
    assert verify(stripped) is None
    with pytest.raises(SignatureError, match="nobody signed it"):
        verify(stripped, [str(public)])


def test_another_key_does_not_help(tmp_path: Path) -> None:
    _, trusted = make_key(tmp_path, "ours")
    other, other_public = make_key(tmp_path, "theirs")
    forged = sign(DOCUMENT, other)
    with pytest.raises(SignatureError, match="none of the trusted keys"):
        verify(forged, [str(trusted)])
    assert verify(forged, [str(trusted), str(other_public)]) is not None
    ours = {**forged, "signature": {**forged["signature"], "key": public_key(str(trusted))}}
    with pytest.raises(SignatureError, match="signature does not belong"):
        verify(ours, [str(trusted)])


@pytest.mark.parametrize("value", [math.nan, math.inf, "\ud800"])
def test_a_document_that_was_never_written_is_no_accident(value: Any) -> None:
    with pytest.raises(SignatureError, match="no canonical form"):
        verify({**DOCUMENT, "digest": digest(DOCUMENT), "value": value})


@pytest.mark.parametrize(
    "signature", [{}, {"key": "x", "value": "y"}, {"key": "ed25519:AAAA", "value": "ed25519:AAAA"}, "text"]
)
def test_a_malformed_signature_is_none(signature: Any) -> None:
    document = {**DOCUMENT, "digest": digest(DOCUMENT), "signature": signature}
    with pytest.raises(SignatureError, match="malformed"):
        verify(document)


def test_keys_that_are_none_are_refused_with_the_remedy(tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    for text in ("ed25519:!!", f"ed25519:{base64.b64encode(bytes(31)).decode()}", "no-such-file", str(private)):
        with pytest.raises(SettingsError, match=r"key|PEM"):
            public_key(text)
    for path in (public, tmp_path / "none.pem"):
        with pytest.raises(SettingsError, match="openssl genpkey -algorithm ed25519"):
            sign(DOCUMENT, path)
    encoded = base64.b64encode(bytes(32)).decode()
    assert public_key(f"ed25519:{encoded}") == f"ed25519:{encoded}"


def test_a_file_that_is_no_object_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(b"\xff")
    with pytest.raises(FormatError, match=r"x\.json"):
        read_document(file)
