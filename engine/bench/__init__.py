"""How fast a model runs on a device, and how near that is to what the machine gives at most."""

from __future__ import annotations

from .measure import bench
from .plan import BenchPlan
from .result import BenchResult
from .roofline import roofline_html

__all__ = ["BenchPlan", "BenchResult", "bench", "roofline_html"]
