"""Weight schemes: how the values of a parameter are coded in bytes (dense element types and packed block formats)."""

from __future__ import annotations

from . import dense as dense
from . import gguf as gguf
from .scheme import SCHEMES, Scheme, register, scheme

__all__ = ["SCHEMES", "Scheme", "register", "scheme"]
