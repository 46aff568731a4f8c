"""Text to tokens and back: tokenizers from tokenizer.json or GGUF, chat templates, and streaming detokenization."""

from __future__ import annotations

from .chat_template import ChatTemplate, Segment
from .detokenizer import Detokenizer
from .tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "Segment", "Tokenizer"]
