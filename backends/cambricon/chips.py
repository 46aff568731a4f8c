"""The generations of Cambricon cards: what they compute in, and the limits that torch_mlu_ops documents."""

from __future__ import annotations

from dataclasses import dataclass

from xinheng.core.ir.dtype import DType, bfloat16, bool_, float16, float32, int8, int16, int32, uint8, uint32

HEADS = frozenset({32, 64, 80, 96, 128, 160, 192, 224, 256, 512, 576})
"""Head sizes of the attention functions."""
DECODE_BLOCKS = frozenset({1, 2, 4, 8, 16, 32, 64})
"""Cache block sizes of `single_query_cached_kv_attn`."""
PREFILL_BLOCK = 16
"""The cache block size of `flash_attention` over a paged cache."""
ROTARY_HEAD = 256
"""The widest head of `apply_rotary`."""
GROUP, GROUP_BF16 = 128, 256
"""Queries per key head in one decode call: Sq * Hq / Hkv, with a cache of float16 and of bfloat16."""
CODE_GROUPS = frozenset({64, 128, 256, 512})
"""Columns that may share a scale in products with weights of 4 and 8 bits, as vllm-mlu's GPTQ and AWQ methods list."""
FIRST_BFLOAT16 = 5
"""The major number of the first generation that computes in bfloat16."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A generation by the major number of its compute capability; `word` is None where there is no emulation."""

    name: str
    major: int
    word: str | None = None
    memory: int = 0

    @property
    def bfloat16(self) -> bool:
        return self.major >= FIRST_BFLOAT16

    @property
    def dtypes(self) -> frozenset[DType]:
        """What tensors may have. float64 is computed as float32 and int64 cut to int32 there, so neither is listed."""
        plain = frozenset({float32, float16, int32, int16, int8, uint8, uint32, bool_})
        return plain | {bfloat16} if self.bfloat16 else plain

    @property
    def preferred(self) -> str:
        return "bfloat16" if self.bfloat16 else "float16"


CHIPS = (Chip("MLU370", 3, "mlu370", 24 << 30), Chip("MLU590", 5, "mlu590", 80 << 30))
"""The generations that are emulated."""


def chip_of(name: str, major: int) -> Chip:
    """The generation of a card, by what torch_mlu tells of it."""
    return next((chip for chip in CHIPS if name.upper().startswith(chip.name)), Chip(name, major))
