"""Native linear over tiles with float activations, accumulated in float32 in one order per element."""

from __future__ import annotations

from collections.abc import Callable

from ..arrays import Array
from .library import Library
from .tiles import product_kernel


def float_product_kernel(library: Library, *, rounded: bool = False) -> Callable[..., Array]:
    """The kernel of `linear`; `rounded` rounds activations to bfloat16 first."""

    def product(*arguments: int) -> int:
        return library.float_product(*arguments, int(rounded))

    return product_kernel(library, product)
