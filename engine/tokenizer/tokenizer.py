"""The tokenizer: text to ids and back, chat messages to a prompt, and never a control token out of a user's text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xinheng.core.errors import FormatError, ModelError, RequestError

from .control_tokens import ControlSplitter, ControlToken
from .gguf_vocabulary import gguf_vocabulary
from .json_vocabulary import json_vocabulary
from .segment import Segment
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from .chat_template import ChatTemplate


class Tokenizer:
    """Token ids of text, text of token ids. Immutable once built; threads may share it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._splitter = ControlSplitter(vocabulary.controls)
        self._control_ids = frozenset(control.id for control in vocabulary.controls)
        self._hidden = frozenset(control.id for control in vocabulary.controls if control.hidden)
        self._pieces: list[bytes | None] = [None] * len(vocabulary.tokens)

    @classmethod
    def from_json(cls, path: str | Path, config: Mapping[str, Any] | None = None) -> Tokenizer:
        """Build from a `tokenizer.json` of the `tokenizers` library.

        `config` is the content of tokenizer_config.json; None reads the file of that name beside `path`, if there is
        one. A `chat_template.jinja` beside `path` replaces the template in the configuration, as in transformers.
        Raises FormatError for a file that is not what it claims, ModelError for a kind of tokenizer without support.
        """
        path = Path(path)
        if config is None:
            config = _configuration(path.with_name("tokenizer_config.json"))
        template = path.with_name("chat_template.jinja")
        if template.is_file():
            config = {**config, "chat_template": template.read_text(encoding="utf-8")}
        return cls(json_vocabulary(path, config))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], pre: str | None = None) -> Tokenizer:
        """Build from the key-values of a GGUF file; `pre` names the pre-tokenizer of a file that does not (old ones).

        Raises ModelError for a tokenizer model or pre-tokenizer without support, or tables that do not fit each other.
        """
        return cls(gguf_vocabulary(metadata, pre))

    def prepare(self) -> None:
        """Build the tables that the first text would wait for."""
        for encoder in (self._vocabulary.head, self._vocabulary.tail):
            encoder.encode(" ")

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return len(self._vocabulary.tokens)

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if the vocabulary has one."""
        return self._vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text, if the vocabulary has one."""
        return self._vocabulary.eos_id

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids after which generation is over: eos, eot and eom of the file, and the conventional ends of a turn.

        Stop ids of config.json and generation_config.json come on top (01-ai/Yi#223).
        """
        return self._vocabulary.stop_ids

    @property
    def add_bos(self) -> bool:
        """Whether the model expects BOS in front of every prompt."""
        return self._vocabulary.add_bos

    @property
    def chat_template(self) -> str | None:
        """The source of the model's chat template, if it has one."""
        return self._vocabulary.chat_template

    @property
    def leading_space(self) -> bool:
        """Whether encoding puts a space before text (and decoding takes it away)."""
        return self._vocabulary.leading_space

    def id(self, token: str) -> int | None:
        """The id of a token by its spelling in the vocabulary, or None."""
        return self._vocabulary.ids.get(token)

    def is_control(self, index: int) -> bool:
        """Whether token `index` is a control token, which no text of a user can yield."""
        return index in self._control_ids

    def encode(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """The ids of `text`.

        `special` recognises control tokens by their spelling: for template text only. Without it the same characters
        are ordinary text. `bos` makes the result begin with exactly one BOS. Raises RequestError for text that is not
        Unicode (a lone surrogate), ModelError for `bos` without a BOS token.
        """
        ids = self.encode_segments([Segment(text, special)])
        return self._with_bos(ids) if bos else ids

    def encode_segments(self, segments: Iterable[Segment]) -> list[int]:
        """The ids of a prompt in which only segments marked special may hold control tokens.

        The text is cut at control tokens of special segments only; what lies between two of them is encoded as one
        piece of ordinary text, so the borders of segments change no merge.
        """
        ids: list[int] = []
        run: list[str] = []
        last: ControlToken | None = None
        for segment in segments:
            for part in self._splitter.split(segment.text) if segment.special else (segment.text,):
                if isinstance(part, str):
                    run.append(part)
                    continue
                ids += self._ordinary("".join(run), last, part)
                ids.append(part.id)
                run.clear()
                last = part
        return ids + self._ordinary("".join(run), last, None)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        template: ChatTemplate | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """The prompt for a conversation, with exactly one BOS if the model uses one.

        `template` defaults to the model's own. Raises RequestError for messages the template refuses, ModelError for a
        model without a template or a template that does not run.
        """
        chosen = template or self.template
        segments = chosen.render(messages, tools=tools, add_generation_prompt=add_generation_prompt, **kwargs)
        ids = self.encode_segments(segments)
        return self._with_bos(ids) if self.add_bos or ids[:1] == [self.bos_id] else ids

    @cached_property
    def template(self) -> ChatTemplate:
        """The model's own chat template. Raises ModelError if it has none."""
        if self.chat_template is None:
            raise ModelError("the model has no chat template; give one, or send a plain prompt instead of messages")
        from .chat_template import ChatTemplate  # and jinja2, which a prompt without messages does not need

        return ChatTemplate(self.chat_template, bos_token=self._text(self.bos_id), eos_token=self._text(self.eos_id))

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD. `skip_special` leaves hidden control tokens out."""
        data = b"".join(self.token_bytes(index, skip_special=skip_special) for index in ids)
        text = data.decode("utf-8", errors="replace")
        return text[1:] if self.leading_space and text.startswith(" ") else text

    def token_bytes(self, index: int, *, skip_special: bool = True) -> bytes:
        """The exact bytes of one token, maybe part of a character; b"" for hidden control tokens and unknown ids."""
        if (skip_special and index in self._hidden) or not 0 <= index < len(self._pieces):
            return b""
        piece = self._pieces[index]
        if piece is None:
            piece = self._pieces[index] = self._vocabulary.token_bytes(index)
        return piece

    def _ordinary(self, text: str, before: ControlToken | None, after: ControlToken | None) -> list[int]:
        if before is not None and before.rstrip:
            text = text.lstrip()
        if after is not None and after.lstrip:
            text = text.rstrip()
        if not text:
            return []
        encoder = self._vocabulary.head if before is None else self._vocabulary.tail
        try:
            return encoder.encode(text)
        except TypeError as error:
            position = next((i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)
            if position is None:
                raise
            raise RequestError(
                f"the text is not valid Unicode: a lone surrogate U+{ord(text[position]):04X} at character {position}"
            ) from error

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos = self.bos_id
        if bos is None:
            raise ModelError("the vocabulary has no BOS token; encode without bos")
        begin = next((position for position, index in enumerate(ids) if index != bos), len(ids))
        return [bos, *ids[begin:]]

    def _text(self, index: int | None) -> str:
        return "" if index is None else self._vocabulary.tokens[index]


def _configuration(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise FormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise FormatError(f"{path} holds a {type(config).__name__}, not an object")
    return config
