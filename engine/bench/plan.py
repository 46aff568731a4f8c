"""What a benchmark measures."""

from __future__ import annotations

from dataclasses import dataclass

from xinheng.core.errors import RequestError

from ..runner import RunnerInfo

MOST_SEQUENCES = 4096


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Prefill of one prompt of `prompt` tokens; `tokens` decode steps behind `context` tokens for each batch size.

    Everything is measured `repeat` times in turn, after a round that does not count.

    Raises:
        RequestError: a number is too small, or a batch size stands twice.
    """

    prompt: int = 512
    tokens: int = 128
    context: int = 128
    batches: tuple[int, ...] = (1, 8, 32)
    repeat: int = 5

    def __post_init__(self) -> None:
        for name, value in (("prompt", self.prompt), ("tokens", self.tokens), ("context", self.context)):
            if value < 1:
                raise RequestError(f"a benchmark with {name} {value} measures nothing; give at least 1")
        if self.repeat < 1:
            raise RequestError(f"repeat is {self.repeat}; measure at least once")
        if not self.batches or min(self.batches) < 1 or max(self.batches) > MOST_SEQUENCES:
            raise RequestError(
                f"batch sizes {', '.join(map(str, self.batches)) or 'none'} must be from 1 to {MOST_SEQUENCES}"
            )
        if len(set(self.batches)) < len(self.batches):
            raise RequestError(f"a batch size stands twice in {', '.join(map(str, self.batches))}")

    @classmethod
    def parse_batches(cls, text: str) -> tuple[int, ...]:
        """Batch sizes from a text such as "1,8,32".

        Raises:
            RequestError: a part is no positive integer.
        """
        parts = [part.strip() for part in text.split(",")]
        wrong = [part for part in parts if not (part.isascii() and part.isdigit() and int(part) > 0)]
        if wrong:
            raise RequestError(f"batch sizes {text!r} have {wrong[0]!r}; write positive integers such as 1,8,32")
        return tuple(map(int, parts))

    def check(self, info: RunnerInfo) -> None:
        """Whether the sequences fit in the context of a model.

        Raises:
            RequestError: they do not; the message says which numbers would.
        """
        longest = info.max_model_len
        for what, length in ((f"prompt {self.prompt}", self.prompt + 1), self._decode):
            if length > longest:
                raise RequestError(
                    f"{what} needs sequences of {length} tokens and the context of this model has {longest}; ask for "
                    "less, or raise engine.max_model_len if it is set"
                )

    @property
    def _decode(self) -> tuple[str, int]:
        return f"context {self.context} with {self.tokens} tokens", self.context + self.tokens + 1
