"""What a caller asks of the engine, the mutable run of one such request, and what the engine reports back."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from xinheng.core.errors import RequestError, nearest

FinishReason = Literal["stop", "length", "abort"]
StopReason = str | int | None
"""The stop string or stop token id that ended a request; None for an end token of the model and for other ends."""

MAX_STOPS = 16
INT32_MAX = 2**31 - 1
FLOAT32_MAX = 3.4028234663852886e38
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]


class SamplingParams(BaseModel):
    """How tokens are chosen and when generation ends; immutable, the same for a library call and an HTTP request.

    Use `SamplingParams.parse(...)` for input from outside: it raises RequestError instead of a pydantic error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    max_tokens: int | None = Field(
        default=None, ge=1, description="an integer of at least 1, or none to fill the context"
    )
    min_tokens: int = Field(default=0, ge=0, description="an integer of at least 0, not above max_tokens")
    temperature: float = Field(
        default=1.0, ge=0, le=FLOAT32_MAX, description="a finite number of at least 0 (0 is greedy)"
    )
    top_k: int = Field(default=0, ge=0, le=INT32_MAX, description="an integer of at least 1, or 0 or -1 for off")
    top_p: float = Field(default=1.0, gt=0, le=1, description="a number above 0 and at most 1")
    min_p: float = Field(default=0.0, ge=0, lt=1, description="a number of at least 0 and below 1")
    seed: int | None = Field(
        default=None, ge=-(2**63), lt=2**63, description="an integer of 64 bits with sign, or none"
    )
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        max_length=MAX_STOPS,
        description=f"a string or at most {MAX_STOPS} strings, none of them empty",
    )
    stop_token_ids: tuple[TokenId, ...] = Field(default=(), description="a list of token ids, each at least 0")
    ignore_eos: bool = Field(default=False, description="true or false")

    @classmethod
    def parse(cls, **values: Any) -> SamplingParams:
        """Build from untrusted values; RequestError names the field, the value and the range it must be in."""
        try:
            return cls(**values)
        except ValidationError as error:
            raise RequestError("; ".join(dict.fromkeys(map(cls._explain, error.errors())))) from None

    @classmethod
    def _explain(cls, error: Any) -> str:
        if not error["loc"]:
            return str(error["ctx"]["error"])
        name = str(error["loc"][0])
        if name not in cls.model_fields:
            return f"unknown sampling parameter {name!r}{nearest(name, list(cls.model_fields))}"
        value = repr(error["input"])
        shown = value if len(value) <= 80 else value[:77] + "..."
        return f"{name} is {shown}, it must be {cls.model_fields[name].description}"

    @field_validator("top_k", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return 0 if type(value) is int and value == -1 else value

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if value is None:
            return ()
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value

    @field_validator("stop_token_ids", mode="before")
    @classmethod
    def _many(cls, value: Any) -> Any:
        return () if value is None else tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _ordered(self) -> SamplingParams:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}, it must not be above max_tokens, {self.max_tokens}")
        return self

    def for_choice(self, index: int) -> SamplingParams:
        """The parameters of choice `index` of several: the seed moves on by `index` (mod 2^64), if there is one."""
        if self.seed is None or index == 0:
            return self
        return self.model_copy(update={"seed": (self.seed + index + 2**63) % 2**64 - 2**63})


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue; `stop_ids` are the model's own end tokens, which `ignore_eos` switches off."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: frozenset[int] = frozenset()


class Status(Enum):
    """Where a sequence is: queued (also after a preemption), holding blocks, or done."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """The run of one request: all its known tokens, and how many of them have keys and values in the cache.

    `max_tokens` is what the request may really generate, after the clamp to the room left in the context and the cache.
    """

    request: Request
    max_tokens: int
    tokens: list[int] = field(init=False)
    seed: tuple[int, int] = field(init=False)  # low and high 32 bits
    stops: frozenset[int] = field(init=False)
    computed: int = 0
    high_water: int = 0  # most tokens ever computed; those below are recomputed after a preemption
    step: int = -1  # the batch that was asked for this sequence's next token, -1 if none is
    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    stop_reason: StopReason = None

    def __post_init__(self) -> None:
        params = self.request.params
        self.tokens = list(self.request.prompt)
        word = secrets.randbits(64) if params.seed is None else params.seed % 2**64
        self.seed = (word & 0xFFFFFFFF, word >> 32)
        ends: frozenset[int] = frozenset() if params.ignore_eos else self.request.stop_ids
        self.stops = ends.union(params.stop_token_ids)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def output_ids(self) -> tuple[int, ...]:
        return tuple(self.tokens[len(self.request.prompt) :])

    @property
    def num_outputs(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def clamped(self) -> bool:
        """Whether the request asked for more tokens than there was room for."""
        asked = self.request.params.max_tokens
        return asked is not None and asked > self.max_tokens

    def append(self, token: int) -> None:
        """Take one sampled token and set `finish_reason` if it is the last.

        A stop token counts as output and ends the request once `min_tokens` tokens precede it; a stop wins over length.
        """
        self.tokens.append(token)
        count = self.num_outputs
        if token in self.stops and count > self.request.params.min_tokens:
            self.finish_reason = "stop"
            end_of_model = token in self.request.stop_ids and not self.request.params.ignore_eos
            self.stop_reason = None if end_of_model else token
        elif count >= self.max_tokens:
            self.finish_reason = "length"


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """What one step (or an abort) did to one request: its new tokens, and why it ended if it did."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: StopReason = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request as its caller sees it so far: everything generated, as ids and as text."""

    request_id: str
    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    max_tokens: int
    clamped: bool
    finish_reason: FinishReason | None
    stop_reason: StopReason

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @classmethod
    def of(cls, sequence: Sequence, text: str) -> RequestOutput:
        """A snapshot of `sequence` with its decoded `text`."""
        return cls(
            sequence.id,
            sequence.request.prompt,
            sequence.output_ids,
            text,
            sequence.max_tokens,
            sequence.clamped,
            sequence.finish_reason,
            sequence.stop_reason,
        )
