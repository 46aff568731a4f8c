"""Builds a vocabulary from a Hugging Face `tokenizer.json` and its `tokenizer_config.json`.

The control tokens are taken out of the file before the `tokenizers` library reads it, so that the library encodes text
as the file says but cannot make a control token of it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Encoder

from xinheng.core.errors import FormatError, ModelError

from .control_tokens import ALWAYS_CONTROL, ControlToken, ends_turn
from .vocabulary import Spelling, TextEncoder, Vocabulary, is_control

_JSON = dict[str, Any]


def json_vocabulary(path: Path, config: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary in the file `path`; `config` is the content of tokenizer_config.json (may be empty).

    Raises FormatError if the file is not a tokenizer.json, ModelError if its kind is not supported (BPE is).
    """
    data = _read(path)
    model = data["model"]
    kind = model.get("type") or ("BPE" if model["merges"] else None)
    if kind != "BPE" or not isinstance(model["vocab"], dict):
        raise ModelError(f"{path} holds a {kind!r} tokenizer; this engine builds BPE tokenizers only")
    template = _template(config)
    leading = _leads(data)
    bos, eos = _content(config.get("bos_token")) or leading, _content(config.get("eos_token"))
    added = data["added_tokens"] = _added(data["added_tokens"], config)
    spelling = _spelling(path, data)
    tokens = _tokens(path, model["vocab"], added)
    controls = tuple(_controls(added, model["vocab"], template, {mark for mark in (bos, eos) if mark}))
    _hide(data, {control.text for control in controls})
    ids = {control.text: control.id for control in controls}
    bos_id, eos_id = _id(path, bos, ids, "bos_token"), _id(path, eos, ids, "eos_token")
    stops = {ids[name] for name in ends_turn(ids)} | ({eos_id} if eos_id is not None else set())
    head, tail = _encoders(path, data)
    add_bos = config.get("add_bos_token")
    return Vocabulary(
        tokens=tokens,
        spelling=spelling,
        head=TextEncoder(lambda: head),
        tail=TextEncoder(lambda: tail),
        controls=controls,
        literal=frozenset(int(token["id"]) for token in added) | frozenset(ids.values()),
        byte_tokens=_byte_tokens(model) if spelling == "sentencepiece" else {},
        leading_space=any(_adds_space(step) for step in _steps(data.get("decoder"))),
        bos_id=bos_id,
        eos_id=eos_id,
        stop_ids=frozenset(stops),
        add_bos=bos_id is not None and (add_bos if isinstance(add_bos, bool) else leading is not None),
        chat_template=template,
    )


def _read(path: Path) -> _JSON:
    try:
        data: _JSON = json.loads(path.read_bytes())
        model, added = data["model"], data.setdefault("added_tokens", [])
        if not all(isinstance(token["content"], str) and token["id"] >= 0 for token in added):
            raise TypeError("an added token has no content or a negative id")
        if isinstance(model["vocab"], dict) and min(model["vocab"].values(), default=0) < 0:
            raise TypeError("model.vocab has a negative id")
        pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model.get("merges", ()))
        model["merges"] = [[left, right] for left, right in pairs]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path} is not a tokenizer.json: {type(error).__name__}: {error}") from error
    return data


def _added(listed: list[_JSON], config: Mapping[str, Any]) -> list[_JSON]:
    """The added tokens of tokenizer.json, and those that only tokenizer_config.json lists."""
    names = {token["content"] for token in listed}
    table: Mapping[str, _JSON] = config.get("added_tokens_decoder") or {}
    late = [{**token, "id": int(index)} for index, token in table.items() if token["content"] not in names]
    return [*listed, *late]


def _content(token: Any) -> str | None:
    """A token of tokenizer_config.json: a string, or an object with the field `content`."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def _template(config: Mapping[str, Any]) -> str | None:
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _steps(step: Any) -> Iterator[_JSON]:
    """A normalizer, pre-tokenizer, decoder or post-processor and, if it is a sequence, its steps."""
    if isinstance(step, dict):
        yield step
        for name in ("normalizers", "pretokenizers", "decoders", "processors"):
            for inner in step.get(name, ()):
                yield from _steps(inner)


def _leads(data: _JSON) -> str | None:
    """The special token that the post-processor puts in front of a text, if any."""
    for step in _steps(data.get("post_processor")):
        if step.get("type") == "TemplateProcessing":
            first: _JSON = next(iter(step.get("single", ())), {})
            if "SpecialToken" in first:
                return str(first["SpecialToken"]["id"])
    return None


def _id(path: Path, text: str | None, ids: Mapping[str, int], name: str) -> int | None:
    if text is None:
        return None
    if text not in ids:
        raise ModelError(f"{name} is {text!r}, which {path} does not know")
    return ids[text]


def _spelling(path: Path, data: _JSON) -> Spelling:
    kinds = {step.get("type") for step in _steps(data.get("decoder") or data.get("pre_tokenizer"))}
    if "ByteLevel" in kinds:
        return "byte_level"
    if kinds & {"Metaspace", "ByteFallback", "Replace"}:
        return "sentencepiece"
    raise ModelError(f"{path} decodes by {sorted(map(str, kinds))}; known are ByteLevel, Metaspace and ByteFallback")


def _adds_space(step: _JSON) -> bool:
    """Whether a decoder step takes away the space that encoding has put in front."""
    if step.get("type") == "Strip":
        return step.get("content") == " " and step.get("start", 0) > 0
    if step.get("type") == "Metaspace":
        return step.get("prepend_scheme", "always") != "never" and bool(step.get("add_prefix_space", True))
    return False


def _tokens(path: Path, vocab: dict[str, int], added: list[_JSON]) -> tuple[str, ...]:
    ids = [*vocab.items(), *((token["content"], token["id"]) for token in added)]
    size = 1 + max((index for _, index in ids), default=-1)
    if size > 4 * len(ids) + 1024:
        raise FormatError(f"{path}: the id {size - 1} does not fit a vocabulary of {len(ids)} tokens")
    tokens = [""] * size
    for text, index in ids:
        tokens[index] = text
    return tuple(tokens)


def _controls(
    added: list[_JSON], vocab: Mapping[str, int], template: str | None, marks: set[str]
) -> Iterator[ControlToken]:
    unlisted = (marks | ALWAYS_CONTROL) - {token["content"] for token in added}
    yield from (ControlToken(vocab[text], text) for text in sorted(unlisted) if text in vocab)
    for token in added:
        text, special = token["content"], bool(token.get("special")) or token["content"] in marks
        if is_control(text, special=special, chat_template=template):
            options = {name: bool(token.get(name)) for name in ("lstrip", "rstrip", "single_word")}
            hidden = is_control(text, special=special, chat_template=None)
            yield ControlToken(int(token["id"]), text, hidden=hidden, **options)


def _hide(data: _JSON, controls: set[str]) -> None:
    """Take the control tokens out of the file's tables; keep the ids of the added tokens that stay."""
    model = data["model"]
    vocab: dict[str, int] = model["vocab"]
    stays = [token for token in data["added_tokens"] if token["content"] not in controls]
    for token in stays:
        vocab.setdefault(token["content"], token["id"])
    for name in controls - {model.get("unk_token")}:
        vocab.pop(name, None)
    merges = model["merges"]
    model["merges"] = [merge for merge in merges if not controls & {*merge, merge[0] + merge[1]}]
    data["added_tokens"] = stays
    data["truncation"] = data["padding"] = data["post_processor"] = None


def _byte_tokens(model: _JSON) -> dict[int, int]:
    names = {f"<0x{byte:02X}>": byte for byte in range(256)}
    return {index: names[text] for text, index in model["vocab"].items() if text in names}


def _encoders(path: Path, data: _JSON) -> tuple[Encoder, Encoder]:
    """The encoders at the start of a prompt and after a control token: some put a space in front only at the start."""
    head = _encoder(path, data)
    if not any(step.get("prepend_scheme") == "first" for step in _steps(data.get("pre_tokenizer"))):
        return head, head
    inner = {**data, "pre_tokenizer": copy.deepcopy(data["pre_tokenizer"])}
    for step in _steps(inner["pre_tokenizer"]):
        if step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"
    return head, _encoder(path, inner)


def _encoder(path: Path, data: _JSON) -> Encoder:
    try:
        return Encoder.from_str(json.dumps(data, ensure_ascii=False))
    except Exception as error:
        raise FormatError(f"{path} is not a usable tokenizer.json: {error}") from error
