"""Property tests repeat the same examples, however slow the machine; HYPOTHESIS_SEARCH=1 looks for new ones."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "core",
    deadline=None,
    derandomize=not os.environ.get("HYPOTHESIS_SEARCH"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("core")
