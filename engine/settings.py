"""Settings of the engine: how much runs at once and how much memory it may take."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from xinheng.core.settings import Settings

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def _bytes(value: Any) -> Any:
    """A size such as 2GiB or 500MB in bytes."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmg]i?|)b?\s*", value.lower())
    if match is None:
        raise ValueError("should be a number of bytes such as 500000000, 500MB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2]])


class EngineSettings(Settings):
    """How requests are batched and what the key-value cache may take."""

    table: ClassVar[str] = "engine"

    max_num_seqs: Annotated[int, Field(ge=1, description="sequences that run at the same time")] = 16
    max_num_batched_tokens: Annotated[int, Field(ge=1, description="tokens that one step computes at most")] = 2048
    prefill_chunk: Annotated[
        int | None, Field(ge=1, description="prompt tokens of one sequence in one step; unset: the whole budget")
    ] = 512
    max_model_len: Annotated[
        int | None, Field(ge=2, description="prompt and answer together; unset: what the model was made for")
    ] = None
    cache_memory: Annotated[
        Annotated[int, Field(ge=1)] | None,
        BeforeValidator(_bytes),
        Field(description="bytes of the key-value cache (500MB, 2GiB); unset: a share of the free memory"),
    ] = None
    cache_dtype: Annotated[
        str,
        Field(description="`auto`: that of the activations, or what the device likes; `int8` halves it once more"),
    ] = "auto"
    block_size: Annotated[
        int | None, Field(ge=1, description="tokens per cache block; unset: what the device likes best")
    ] = None
    tensor_parallel_size: Annotated[
        int,
        Field(
            ge=1, description="ranks that share the layers of a model; each is a subprocess with a device of its own"
        ),
    ] = 1
    runner: Annotated[
        Literal["inprocess", "subprocess"],
        Field(description="where the model runs; a subprocess can be watched and ended"),
    ] = "inprocess"
    runner_timeout: Annotated[
        float, Field(gt=0, description="seconds after which a silent subprocess runner counts as hung")
    ] = 600.0
