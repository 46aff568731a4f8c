"""The functions of the installed torch_mlu_ops; releases rename and drop them, so each is looked up once by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

WANTED = (
    "active",
    "apply_rotary",
    "flash_attention",
    "fused_layer_norm",
    "fused_rms_norm",
    "group_gemm",
    "matmul",
    "moe_active",
    "moe_combine_result",
    "moe_expand_input",
    "moe_gen_idx",
    "moe_sigmoid_topk",
    "moe_softmax_topk",
    "reshape_paged_cache",
    "single_query_cached_kv_attn",
)
"""Functions of every known release."""
RENAMED = {
    "scaled_matmul": ("smooth_quant_matmul", "weight_only_quant_matmul"),
    "scaled_quantize": ("per_token_smooth_quantize",),
}
"""Functions of new releases, and what does the same in releases of the 1.3 kind."""


class Functions:
    """What a release offers; a function it lacks is None."""

    def __init__(self, module: Any | None) -> None:
        """Take the module torch_mlu_ops or its double; None where it is not installed."""
        self.installed = module is not None
        found = {
            name: getattr(module, name, None)
            for name in (*WANTED, *RENAMED, *(o for old in RENAMED.values() for o in old))
        }
        self._found: dict[str, Callable[..., Any]] = {name: f for name, f in found.items() if callable(f)}

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self._found[name]

    def takes(self, name: str, parameter: str) -> bool:
        """Whether a function is there and has a parameter of some name."""
        try:
            return name in self and parameter in inspect.signature(self[name]).parameters
        except ValueError:  # one that is compiled may not tell its parameters
            return False

    def lacking(self) -> list[str]:
        """The functions that neither this release nor an older name of them provides."""
        lost = [new for new, old in RENAMED.items() if new not in self and not all(name in self for name in old)]
        return sorted([name for name in WANTED if name not in self] + lost)
