"""Who makes the devices that torch can address; nothing here imports torch."""

from __future__ import annotations

from .mask import shown
from .vendor import Vendor, maker_of, vendors

__all__ = ["Vendor", "maker_of", "shown", "vendors"]
