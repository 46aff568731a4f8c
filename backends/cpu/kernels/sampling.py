"""Native choice of tokens: the uniform stream, and sampling that sorts no more of a vocabulary than it has to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..arrays import Array, address, contiguous
from .library import Library, int32_of, matrix_of


def uniform_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `random_uniform`."""

    def random_uniform(seed: Array, counter: Array) -> Array:
        seed, counter = contiguous(seed), contiguous(counter)
        out = library.empty(counter.shape, np.float32)
        library.random_uniform(address(seed), address(counter), len(counter), address(out))
        return out

    return random_uniform


def sample_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `top_k_top_p_sample`, in float64; a row with a NaN or an infinity gives its largest element."""

    def top_k_top_p_sample(
        logits: Array, uniform: Array, temperature: Array, top_k: Array, top_p: Array, min_p: Array
    ) -> Array:
        flat, rows, stride = matrix_of(logits)
        given = [contiguous(uniform), contiguous(temperature), int32_of(top_k), contiguous(top_p), contiguous(min_p)]
        out = library.empty(rows, np.int32)
        library.sample(address(flat), rows, logits.shape[1], stride, *map(address, given), address(out))
        return out

    return top_k_top_p_sample
