"""Text to tokens and back: tokenizers from tokenizer.json or GGUF, chat templates, and streaming detokenization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .detokenizer import Detokenizer
from .segment import Segment
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

__all__ = ["ChatTemplate", "Detokenizer", "Segment", "Tokenizer"]


def __getattr__(name: str) -> Any:
    """`ChatTemplate`, whose import of jinja2 a prompt without messages need not wait for."""
    if name == "ChatTemplate":
        from .chat_template import ChatTemplate

        return ChatTemplate
    raise AttributeError(f"module 'xinheng.engine.tokenizer' has no attribute {name!r}")
