"""The one message from scheduler to runner and its answer: plain arrays that cross a process border as bytes."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from xinheng.core.errors import FormatError

from .request import Sequence

Int32 = npt.NDArray[np.int32]
UInt32 = npt.NDArray[np.uint32]
Float32 = npt.NDArray[np.float32]

_MAGIC = b"XHM1"
_SMALLEST = np.finfo(np.float32).tiny
_DTYPES = {"<i4": np.int32, "<u4": np.uint32, "<f4": np.float32}


@dataclass(frozen=True, slots=True, eq=False)
class GroupBatch:
    """Where one cache group keeps this batch's keys and values.

    slots int32 [T]: block * block_size + offset of each token. block_table int32 [S, B]: the block of each logical
    block, -1 where it was freed or lies beyond the sequence.
    """

    slots: Int32
    block_table: Int32


@dataclass(frozen=True, slots=True, eq=False)
class SamplingArrays:
    """Sampling parameters of the R rows whose token is wanted.

    temperature, top_p, min_p float32 [R] (temperature 0: greedy); top_k int32 [R] (0: off); seed uint32 [R, 2], low
    word first; counter uint32 [R]: index of the wanted token among its sequence's outputs. (seed, counter) is the whole
    state of a row's random stream, so its draws depend on neither batch mates nor preemption.
    """

    temperature: Float32
    top_k: Int32
    top_p: Float32
    min_p: Float32
    seed: UInt32
    counter: UInt32

    @classmethod
    def of(cls, sequences: Iterable[Sequence]) -> SamplingArrays:
        """One row per sequence, in order."""
        rows = list(sequences)
        params = [sequence.request.params for sequence in rows]
        top_p = np.array([p.top_p for p in params], np.float32)
        return cls(
            temperature=np.array([p.temperature for p in params], np.float32),
            top_k=np.array([p.top_k for p in params], np.int32),
            top_p=np.maximum(top_p, _SMALLEST),
            min_p=np.array([p.min_p for p in params], np.float32),
            seed=np.array([sequence.seed for sequence in rows], np.uint32).reshape(len(rows), 2),
            counter=np.array([sequence.num_outputs for sequence in rows], np.uint32),
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """One step over S sequences with T tokens in all; prefill, decode and mixtures look the same.

    tokens, positions int32 [T]; query_start int32 [S+1]: sequence s owns tokens query_start[s]..query_start[s+1];
    seq_lens int32 [S]: its length including these tokens; groups: one entry per cache group; logit_rows int32 [R]: the
    tokens whose logits are wanted (the last one of each sequence that has all its known tokens computed after this
    step); sampling and request_ids: one entry per logit row; adapter_index int32 [S]: reserved, None means no adapters;
    step numbers the batches.
    """

    tokens: Int32
    positions: Int32
    query_start: Int32
    seq_lens: Int32
    groups: Mapping[str, GroupBatch]
    logit_rows: Int32
    sampling: SamplingArrays
    request_ids: tuple[str, ...]
    adapter_index: Int32 | None = None
    step: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_sequences(self) -> int:
        return len(self.seq_lens)

    @cached_property
    def all_greedy(self) -> bool:
        """Whether every wanted token is simply the argmax of its logits."""
        return not self.sampling.temperature.any()

    def to_bytes(self) -> bytes:
        """Pack into one message; `from_bytes` is the inverse."""
        arrays = {name: getattr(self, name) for name in _PLAIN}
        arrays |= {f"sampling.{name}": getattr(self.sampling, name) for name in _SAMPLING}
        for i, group in enumerate(self.groups.values()):
            arrays |= {f"{i}.slots": group.slots, f"{i}.block_table": group.block_table}
        if self.adapter_index is not None:
            arrays["adapter_index"] = self.adapter_index
        return _pack({"groups": list(self.groups), "request_ids": self.request_ids, "step": self.step}, arrays)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray) -> Batch:
        """Read a packed batch; its arrays are views of `data`, writable if that is. FormatError if it is not one."""
        header, arrays = _unpack(data)
        try:
            return cls(
                **{name: arrays[name] for name in _PLAIN},
                groups={
                    name: GroupBatch(arrays[f"{i}.slots"], arrays[f"{i}.block_table"])
                    for i, name in enumerate(header["groups"])
                },
                sampling=SamplingArrays(**{name: arrays[f"sampling.{name}"] for name in _SAMPLING}),
                request_ids=tuple(header["request_ids"]),
                adapter_index=arrays.get("adapter_index"),
                step=header["step"],
            )
        except KeyError as error:
            raise FormatError(f"batch message lacks field {error}; it is another kind of message") from None


_PLAIN = ("tokens", "positions", "query_start", "seq_lens", "logit_rows")
_SAMPLING = tuple(SamplingArrays.__annotations__)


@dataclass(frozen=True, slots=True, eq=False)
class BatchResult:
    """The runner's answer: token_ids int32 [R], one sampled token per logit row, with the ids of the batch."""

    request_ids: tuple[str, ...]
    token_ids: Int32

    def to_bytes(self) -> bytes:
        """Pack into one message; `from_bytes` is the inverse."""
        return _pack({"request_ids": self.request_ids}, {"token_ids": self.token_ids})

    @classmethod
    def from_bytes(cls, data: bytes | bytearray) -> BatchResult:
        """Read a packed result; FormatError if it is not one."""
        header, arrays = _unpack(data)
        try:
            return cls(tuple(header["request_ids"]), arrays["token_ids"])
        except KeyError as error:
            raise FormatError(f"batch result lacks field {error}; it is another kind of message") from None


def _pack(header: dict[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Magic, header length (uint32, little endian), JSON header padded to 4 bytes, then one array after another."""
    little = {name: array.astype(array.dtype.newbyteorder("<"), copy=False) for name, array in arrays.items()}
    header = header | {"arrays": [[name, array.dtype.str, array.shape] for name, array in little.items()]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 4)
    return b"".join([_MAGIC, struct.pack("<I", len(text)), text, *(array.tobytes() for array in little.values())])


def _unpack(data: bytes | bytearray) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    if data[:4] != _MAGIC or len(data) < 8:
        raise FormatError(f"message begins with {bytes(data[:8])!r} (offset 0) instead of {_MAGIC!r} and a length")
    offset = 8 + struct.unpack_from("<I", data, 4)[0]
    try:
        header = json.loads(data[8:offset])
        layout = [
            (str(name), np.dtype(_DTYPES[code]), tuple(map(int, sizes))) for name, code, sizes in header["arrays"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"message header (offset 8, ends at {offset}) cannot be read: {error!r}") from None
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, dtype, shape in layout:
        count = math.prod(shape)
        if min(shape, default=0) < 0 or offset + count * dtype.itemsize > len(data):
            raise FormatError(f"message field {name!r} {shape} at offset {offset} lies beyond its {len(data)} bytes")
        arrays[name] = np.frombuffer(data, dtype, count, offset).reshape(shape)
        offset += count * dtype.itemsize
    if offset != len(data):
        raise FormatError(f"message has {len(data) - offset} bytes more than its header describes (offset {offset})")
    return header, arrays
