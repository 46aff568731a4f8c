"""The inference engine: models as graphs, continuous batching over a paged cache, sampling, text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .engine import Delta, Engine, Timings
from .llm import LLM
from .request import RequestOutput, SamplingParams
from .settings import EngineSettings

if TYPE_CHECKING:
    from .async_llm import AsyncLLM

__all__ = ["LLM", "AsyncLLM", "Delta", "Engine", "EngineSettings", "RequestOutput", "SamplingParams", "Timings"]


def __getattr__(name: str) -> Any:
    """`AsyncLLM`, whose import of asyncio others need not wait for."""
    if name == "AsyncLLM":
        from .async_llm import AsyncLLM

        return AsyncLLM
    raise AttributeError(f"module 'xinheng.engine' has no attribute {name!r}")
