"""Sample calls of every op of the op set, with odd sizes, empty tensors, ties and special values."""

from __future__ import annotations

from ..case import SAMPLES, Case, Sample, Tier, find
from . import attention as attention
from . import collective as collective
from . import contraction as contraction
from . import convolution as convolution
from . import division as division
from . import elementwise as elementwise
from . import fused as fused
from . import indexing as indexing
from . import latent as latent
from . import moe as moe
from . import movement as movement
from . import nn as nn
from . import pooling as pooling
from . import product as product
from . import quantization as quantization
from . import recurrent as recurrent
from . import reduction as reduction
from . import sampling as sampling
from . import transcendental as transcendental
from . import varlen as varlen

__all__ = ["SAMPLES", "Case", "Sample", "Tier", "find"]
