"""Builds a vocabulary from the `tokenizer.*` key-values of a GGUF file: byte-level ("gpt2") or SentencePiece ("llama").

Keys and token types are those of the GGUF specification (ggml-org/ggml, docs/gguf.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from tokenizers import AddedToken
from tokenizers import Tokenizer as Encoder
from tokenizers.models import BPE
from tokenizers.normalizers import Prepend, Replace
from tokenizers.normalizers import Sequence as Normalizers

from xinheng.core.errors import ModelError

from .control_tokens import ALWAYS_CONTROL, ControlToken, ends_turn
from .pretokenizers import PreTokenizer, pretokenizer
from .vocabulary import TextEncoder, Vocabulary, is_control

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_PREFIX = "tokenizer.ggml."


def gguf_vocabulary(metadata: Mapping[str, Any], pre: str | None = None) -> Vocabulary:
    """The vocabulary of a GGUF file.

    `pre` names the pre-tokenizer of a byte-level file that lacks `tokenizer.ggml.pre`; it overrides the file's.
    Raises ModelError for a tokenizer model or pre-tokenizer this engine does not know, and for tables that do not fit.
    """
    model = metadata.get(_PREFIX + "model")
    if model == "gpt2":
        return _byte_level(_Table(metadata), pre)
    if model == "llama":
        return _sentencepiece(_Table(metadata))
    raise ModelError(
        f"tokenizer.ggml.model is {model!r}; from GGUF only 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE) "
        "can be built. Put the model's tokenizer.json beside the file"
    )


class _Table:
    """The tokenizer arrays of a GGUF file, checked and sorted by kind."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.template = _template(metadata)
        self.tokens = tuple(map(str, self.array("tokens")))
        types = self.array("token_type", default=[_NORMAL] * len(self.tokens))
        if len(types) != len(self.tokens):
            raise ModelError(f"tokenizer.ggml.token_type has {len(types)} entries for {len(self.tokens)} tokens")
        self._kinds = np.array(types, np.int64)
        self.types: list[int] = self._kinds.tolist()
        self.ids = self._unique_ids()
        self.marks = [self.id(name) for name in ("bos", "eos", "eot", "eom")]
        self.controls = tuple(self._controls())
        self.control_ids = frozenset(control.id for control in self.controls)
        self.user_defined = [i for i in self._of(_USER_DEFINED) if i not in self.control_ids]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of `tokenizer.ggml.<name>`."""
        return self._metadata.get(_PREFIX + name, default)

    def array(self, name: str, default: Sequence[Any] | None = None) -> list[Any]:
        """An array as a list. Raises ModelError if it is missing and has no default."""
        value = self.get(name, default)
        if value is None:
            raise ModelError(
                f"the GGUF file has no {_PREFIX}{name}; convert the model again, or use its tokenizer.json"
            )
        return list(value.tolist() if hasattr(value, "tolist") else value)

    def id(self, name: str, default: int | None = None) -> int | None:
        """The id in `tokenizer.ggml.<name>_token_id`. Raises ModelError if it lies outside the vocabulary."""
        value = self.get(f"{name}_token_id", default)
        if value is not None and not 0 <= int(value) < len(self.tokens):
            raise ModelError(f"{_PREFIX}{name}_token_id is {value}, but the vocabulary has {len(self.tokens)} tokens")
        return None if value is None else int(value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean value, `default` if the file does not say."""
        return bool(self.get(name, default))

    def _unique_ids(self) -> dict[str, int]:
        ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        if len(ids) != len(self.tokens):
            double = [token for token, count in Counter(self.tokens).items() if token and count > 1]
            if double:
                raise ModelError(f"tokenizer.ggml.tokens lists {double[0]!r} twice; convert the model again")
        ids.pop("", None)
        return ids

    def _controls(self) -> Iterable[ControlToken]:
        # Phi-3's control tokens swallow the white space after them; a GGUF file has no field that says so.
        strips = self._metadata.get("general.architecture") == "phi3" and self.get("model") == "llama"
        always = (self.ids[text] for text in ALWAYS_CONTROL if text in self.ids)
        marked = {*self._of(_CONTROL, _UNKNOWN), *always, *(mark for mark in self.marks if mark is not None)}
        for index in sorted({*marked, *self._of(_USER_DEFINED)}):
            text = self.tokens[index]
            if index in marked:
                yield ControlToken(index, text, rstrip=strips and text not in ("<unk>", "<s>", "<|endoftext|>"))
            elif is_control(text, special=False, chat_template=self.template):
                yield ControlToken(index, text, hidden=is_control(text, special=False, chat_template=None))

    def _of(self, *kinds: int) -> list[int]:
        """The ids of all tokens of these kinds."""
        found: list[int] = np.flatnonzero(np.isin(self._kinds, kinds)).tolist()
        return found

    def stop_ids(self) -> frozenset[int]:
        """The ids the file names as ends, and the conventional ends of a turn among its control tokens."""
        conventional = ends_turn(control.text for control in self.controls)
        return frozenset([self.ids[name] for name in conventional] + [i for i in self.marks[1:] if i is not None])

    def ordinary(self, kinds: Iterable[int]) -> dict[str, int]:
        """The tokens of these kinds that are not control tokens, by spelling."""
        pieces = dict(self.ids)
        others = np.flatnonzero(np.isin(self._kinds, list(kinds), invert=True)).tolist()
        for index in {*others, *self.control_ids}:
            pieces.pop(self.tokens[index], None)
        return pieces

    def add_user_defined(self, encoder: Encoder, *, normalized: bool = False) -> None:
        """Teach `encoder` the plain added tokens: they are matched before anything else, raw or `normalized`."""
        texts = [self.tokens[index] for index in self.user_defined]
        encoder.add_tokens([AddedToken(text, normalized=normalized, special=False) for text in texts])
        wrong = [text for text in texts if encoder.token_to_id(text) != self.ids[text]]
        if wrong:
            raise ModelError(
                f"the user-defined token {wrong[0]!r} does not keep its id; use the model's tokenizer.json"
            )


def _template(metadata: Mapping[str, Any]) -> str | None:
    template = metadata.get("tokenizer.chat_template")
    return None if template is None else str(template)


def _byte_level(table: _Table, pre: str | None) -> Vocabulary:
    name = pre if pre is not None else table.get("pre")
    if name is None:
        raise ModelError(
            "the GGUF file does not name its pre-tokenizer (tokenizer.ggml.pre), and a wrong one spoils the model's "
            "answers without notice; convert the model again, use its tokenizer.json, or name the rule"
        )
    rule: PreTokenizer = pretokenizer(str(name))
    vocabulary = table.ordinary((_NORMAL, _USER_DEFINED, _UNUSED, 0))
    controls = {table.tokens[index] for index in table.control_ids}
    merges = _merges(table.array("merges"), vocabulary, controls)

    def make() -> Encoder:
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
        encoder = Encoder(BPE(vocab=vocabulary, merges=pairs, ignore_merges=rule.ignore_merges))
        if (normalizer := rule.normalizer()) is not None:
            encoder.normalizer = normalizer
        encoder.pre_tokenizer = rule.build()
        table.add_user_defined(encoder)
        return encoder

    text, bos = TextEncoder(make), table.marks[0]
    return Vocabulary(
        tokens=table.tokens,
        spelling="byte_level",
        head=text,
        tail=text,
        controls=table.controls,
        literal=table.control_ids | frozenset(table.user_defined),
        bos_id=bos,
        eos_id=table.marks[1],
        stop_ids=table.stop_ids(),
        add_bos=table.flag("add_bos_token", rule.add_bos) and bos is not None,
        chat_template=table.template,
    )


def _merges(texts: list[str], vocabulary: Mapping[str, int], controls: Container[str]) -> list[str]:
    """The merges of a file, without those that need or yield a control token: they would let text become one.

    Raises ModelError for what is not two pieces, and for pieces that are neither in `vocabulary` nor control tokens.
    """
    if _all_known(texts, vocabulary):
        return texts
    kept = []
    for text in texts:
        left, _, right = text.partition(" ")
        if not left or not right:
            raise ModelError(f"tokenizer.ggml.merges holds {text!r}, which is not two pieces divided by a space")
        pieces = (left, right, left + right)
        if any(piece in controls for piece in pieces):
            continue
        if missing := [piece for piece in pieces if piece not in vocabulary]:
            raise ModelError(
                f"the tokenizer's merges do not fit its tokens: {missing[0]!r} of merge {text!r} is none of them; "
                "convert the model again"
            )
        kept.append(text)
    return kept


def _all_known(texts: list[str], vocabulary: Mapping[str, int]) -> bool:
    """Whether all merges are two pieces in `vocabulary`, which has no control tokens, and so is what they yield.

    Without a loop of Python: files have some hundred thousand merges.
    """
    known = vocabulary.__contains__
    if not all(map((1).__eq__, map(str.count, texts, repeat(" ")))):
        return False
    yielded = map(str.replace, texts, repeat(" "), repeat(""))
    return all(map(known, " ".join(texts).split(" "))) and all(map(known, yielded))


def _sentencepiece(table: _Table) -> Vocabulary:
    scores = [float(score) for score in table.array("scores")]
    if len(scores) != len(table.tokens):
        raise ModelError(f"tokenizer.ggml.scores has {len(scores)} entries for {len(table.tokens)} tokens")
    pieces = table.ordinary((_NORMAL, _UNUSED, 0))
    byte_tokens = {index: _byte(table.tokens[index]) for index, kind in enumerate(table.types) if kind == _BYTE}
    unknown = table.id("unknown", default=0 if table.types and table.types[0] == _UNKNOWN else None)
    vocabulary = pieces | table.ordinary((_BYTE, _USER_DEFINED))
    options: dict[str, Any] = {"byte_fallback": len(set(byte_tokens.values())) == 256}
    if unknown is not None:
        options |= {"unk_token": table.tokens[unknown], "fuse_unk": True}
        vocabulary[table.tokens[unknown]] = unknown
    leading_space = table.flag("add_space_prefix", True)

    def make() -> Encoder:
        encoder = Encoder(BPE(vocab=vocabulary, merges=merges_from_scores(pieces, scores), **options))
        replace = Replace(" ", "\u2581")
        encoder.normalizer = Normalizers([Prepend("\u2581"), replace]) if leading_space else replace
        # With the space in front, a token would be looked for with that space.
        table.add_user_defined(encoder, normalized=not leading_space)
        return encoder

    text, bos, eos = TextEncoder(make), table.id("bos", default=1), table.id("eos", default=2)
    return Vocabulary(
        tokens=table.tokens,
        spelling="sentencepiece",
        head=text,
        tail=text,
        controls=table.controls,
        literal=table.control_ids | frozenset(table.user_defined),
        byte_tokens=byte_tokens,
        leading_space=leading_space,
        bos_id=bos,
        eos_id=eos,
        stop_ids=table.stop_ids() | ({eos} if eos is not None else set()),
        add_bos=table.flag("add_bos_token", True) and bos is not None,
        chat_template=table.template,
    )


def merges_from_scores(pieces: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The BPE merges that a SentencePiece vocabulary implies: every way to make a piece of two, best score first.

    `pieces` gives the id of each piece, `scores` the score by id. The order inside a score is that of
    `generate_merges` in transformers. Linear in the total length of the pieces.
    """
    groups: dict[float, list[str]] = {}
    for piece, index in pieces.items():
        if len(piece) > 1:
            groups.setdefault(scores[index], []).append(piece)
    merges: list[tuple[str, str]] = []
    for score in sorted(groups, reverse=True):
        found = [
            (left, right)
            for piece in groups[score]
            for cut in range(len(piece) - 1, 0, -1)
            if (left := piece[:cut]) in pieces and (right := piece[cut:]) in pieces
        ]
        if len(groups[score]) > 1:
            found.sort(key=lambda merge: (-len(merge[0]), -len(merge[1])))
        merges += found
    return merges


def _byte(token: str) -> int:
    try:
        if not (token.startswith("<0x") and token.endswith(">")):
            raise ValueError(token)
        return int(token[3:-1], 16)
    except ValueError:
        raise ModelError(f"the byte token {token!r} is not spelled <0x00> to <0xFF>") from None
