"""Canonical JSON, digests and Ed25519 signatures, for documents that others have to be able to trust.

A signed document is a JSON object with two fields that speak of the rest of it: `digest`, which shows accidents, and
`signature`, which shows who answers for it. Both are taken over the canonical form of the object without these two.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from .errors import FormatError, SettingsError, SignatureError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PREFIX = "ed25519:"


class Signature(BaseModel):
    """Who signed: `key` is the public key and `value` the signature, both as `ed25519:` and base64."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    value: str


def plain(value: Any) -> Any:
    """A value as JSON can hold it.

    Dates become ISO text, infinities and NaN the texts "inf", "-inf" and "nan", and halves of characters, as they come
    from the output of other programs, the replacement character.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        inner = [plain(x) for x in value]
        return sorted(inner) if isinstance(value, set | frozenset) else inner
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str | Path):
        return str(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def canonical(data: Any) -> bytes:
    """The one spelling of plain data: UTF-8, sorted keys, no white space, the shortest floats that read back.

    It is RFC 8785 but for two details that make it independent of JavaScript: keys are sorted by code points, not by
    UTF-16 units, and a float keeps its point, as in `1.0`.

    Raises:
        ValueError: an infinity, NaN or half of a character is left in it; `plain` turns them into text.
    """
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def content(document: Mapping[str, Any]) -> bytes:
    """What digest and signature of a document are taken of."""
    return canonical({key: value for key, value in document.items() if key not in ("digest", "signature")})


def digest(document: Mapping[str, Any]) -> str:
    """The digest that belongs in a document, as `sha256:` and hexadecimal digits."""
    return f"sha256:{hashlib.sha256(content(document)).hexdigest()}"


def sign(document: Mapping[str, Any], key: Path) -> dict[str, Any]:
    """The document with its digest, and a signature by the private key in a PEM file.

    Raises:
        SettingsError: the file holds no Ed25519 private key.
    """
    private = _private(key)
    bare = {name: value for name, value in document.items() if name not in ("digest", "signature")}
    signature = Signature(key=_text(_raw(private.public_key())), value=_text(private.sign(content(bare))))
    return {**bare, "digest": digest(bare), "signature": signature.model_dump()}


def verify(document: Mapping[str, Any], trusted: Iterable[str] = ()) -> Signature | None:
    """Check that a document is what was written, and return who signed it; None where nobody did.

    Args:
        document: as read from JSON, before anything is made of it.
        trusted: public keys, each as `ed25519:` text or the path of a PEM file. If there are any, one of them has to
            have signed; else a digest only shows accidents, since everybody can make a new one.

    Raises:
        SignatureError: digest or signature do not belong to the content, or none of the trusted keys signed.
        SettingsError: a trusted key cannot be read.
    """
    keys = [public_key(text) for text in trusted]
    try:
        expected = digest(document)
    except ValueError as error:
        raise SignatureError(f"the content has no canonical form: {error}") from None
    if document.get("digest") != expected:
        raise SignatureError("the content does not match its digest: it was changed after it was written")
    if document.get("signature") is None:
        if keys:
            raise SignatureError("nobody signed it, and a signature by a trusted key is required")
        return None
    try:
        signature = Signature.model_validate(document["signature"])
        signer = _public(_bytes(signature.key))
        value = _bytes(signature.value)
    except ValueError as error:
        raise SignatureError(f"its signature is malformed: {error}") from None
    _check(signer, value, content(document))
    if keys and signature.key not in keys:
        raise SignatureError(f"{signature.key} signed it, which is none of the trusted keys ({', '.join(keys)})")
    return signature


def public_key(text: str) -> str:
    """A public key in its text form, given that or the path of a PEM file with the public key.

    Raises:
        SettingsError: it is neither.
    """
    if text.startswith(PREFIX):
        try:
            return _text(_raw(_public(_bytes(text))))
        except ValueError as error:
            raise SettingsError(f"{text!r} is no Ed25519 public key: {error}") from None
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    path = Path(text).expanduser()
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"{text!r} is neither {PREFIX} and a key in base64 nor a PEM file with a public key: {error}"
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise SettingsError(f"{path}: this is no Ed25519 key; 'openssl pkey -in KEY.pem -pubout' writes the right file")
    return _text(_raw(key))


def read_document(path: Path) -> dict[str, Any]:
    """The JSON object in a file, untouched.

    Raises:
        FormatError: the file is not JSON, or holds something other than an object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(f"{path}: this is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise FormatError(f"{path}: a JSON object was expected, this is {type(data).__name__}")
    return data


def _private(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    remedy = "'openssl genpkey -algorithm ed25519 -out key.pem' makes one"
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"{path}: no private key can be read from it ({error}); {remedy}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError(f"{path}: this is no Ed25519 private key; {remedy}")
    return key


def _check(signer: Ed25519PublicKey, value: bytes, message: bytes) -> None:
    from cryptography.exceptions import InvalidSignature

    try:
        signer.verify(value, message)
    except InvalidSignature:
        raise SignatureError("the signature does not belong to the content: it was changed after signing") from None


def _public(raw: bytes) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(raw)


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes_raw()


def _text(raw: bytes) -> str:
    return PREFIX + base64.b64encode(raw).decode()


def _bytes(text: str) -> bytes:
    if not text.startswith(PREFIX):
        raise ValueError(f"{text!r} does not start with {PREFIX!r}")
    return base64.b64decode(text.removeprefix(PREFIX), validate=True)
