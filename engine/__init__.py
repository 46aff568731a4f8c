"""The inference engine: models as graphs, continuous batching over a paged cache, sampling, text."""

from __future__ import annotations

from .async_llm import AsyncLLM
from .engine import Delta, Engine, Timings
from .llm import LLM
from .request import RequestOutput, SamplingParams
from .settings import EngineSettings

__all__ = ["LLM", "AsyncLLM", "Delta", "Engine", "EngineSettings", "RequestOutput", "SamplingParams", "Timings"]
