"""Weight schemes: how the values of a parameter are coded in bytes (dense element types and packed block formats)."""

from __future__ import annotations

from . import dense as dense
from . import float8 as float8
from . import gguf as gguf
from . import group as group
from . import int8 as int8
from .scheme import SCHEMES, Scheme, register, scheme

__all__ = ["SCHEMES", "Scheme", "register", "scheme"]
