"""The generations of Ascend chips, and what the kernels of this backend may ask of each. Data; imports no framework.

Names are those that `aclrtGetSocName` and `torch.npu.get_device_name` report, such as Ascend910B3. "Ascend910B" without
a digit behind it is an early board of the first generation, not an A2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chip:
    """One generation.

    Attributes:
        word: what its emulation is called, `ascend:910b`.
        name: what people call it.
        soc: an example of the names the driver reports.
        pattern: regular expression over those names.
        bfloat16: it computes in bfloat16; the others in float16.
        fused: the operators of the A2 and later: FIA attention, rotary, paged scatter, experts, quantised products.
        atb: it attends by the ATB library over a cache in NZ order; else, without `fused`, by plain torch.
        nz_weights: 16-bit matrices lie in FRACTAL_NZ.
        graphs: runs can be captured (aclgraph).
        pci: device identifiers on the PCI bus of Huawei (vendor 0x19e5).
        versions: what `torch_npu.npu.utils.get_soc_version` may return, first and last.
    """

    word: str
    name: str
    soc: str
    pattern: str
    bfloat16: bool
    fused: bool
    atb: bool
    nz_weights: bool
    graphs: bool
    pci: tuple[str, ...]
    versions: tuple[int, int]

    @property
    def dtype(self) -> str:
        """What `dtype = "auto"` computes in."""
        return "bfloat16" if self.bfloat16 else "float16"

    @property
    def sampling(self) -> bool:
        """It has `npu_top_k_top_p`, which the manual gives to these two alone."""
        return self.word in ("910b", "910c")


BLOCK_SIZE = 128
"""Tokens of a cache block: the only size that prefill and decode of all generations take."""
HEAD_LIMIT = 256
"""The widest head of fused attention over queries in TND order; a multiple of 16 numbers."""
ATB_HEAD_LIMIT = 128
"""The widest head of ATB attention with blocks of 128 tokens; a multiple of 16 numbers."""

_OLD = r"Ascend910(A|B|Pro[AB]|PremiumA)?"
CHIPS = (
    Chip("310p", "Atlas 300I", "Ascend310P3", r"Ascend310P\d*", False, False, True, True, False, ("d500",), (200, 205)),
    Chip("910b", "A2", "Ascend910B3", r"Ascend910B\d.*", True, True, False, False, True, ("d802",), (220, 225)),
    Chip("910c", "A3", "Ascend910_9391", r"Ascend910_93\d\d", True, True, False, False, True, ("d803",), (250, 256)),
    Chip("910a", "910", "Ascend910A", _OLD, False, False, False, False, False, ("d801",), (100, 104)),
    Chip("950", "A5", "Ascend950PR", r"Ascend950.*", True, True, False, False, True, (), (260, 260)),
)
"""All generations known here; 310B and 310 boards are embedded systems, which this backend does not drive."""

EMULATED = ("310p", "910a", "910b")
"""The words that open an emulation."""


def chip_of(name: str) -> Chip | None:
    """The generation of a name that the driver reports; None if it is none of these."""
    return next((chip for chip in CHIPS if re.fullmatch(chip.pattern, name)), None)


def chip_called(word: str) -> Chip:
    """The generation of a word."""
    return next(chip for chip in CHIPS if chip.word == word)


def chip_on_bus(identifier: str) -> Chip | None:
    """The generation of a PCI device identifier, such as `d802`."""
    return next((chip for chip in CHIPS if identifier in chip.pci), None)


def chip_of_version(version: int) -> Chip | None:
    """The generation of a number that torch_npu gives to SoCs."""
    return next((chip for chip in CHIPS if chip.versions[0] <= version <= chip.versions[1]), None)
