"""Where the vendor's package is at hand, the tests of kernels run against its operators and their calls are kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .contract import vendor

if vendor.FOLDER is not None:
    vendor.load()


@pytest.fixture(autouse=vendor.FOLDER is not None)
def kept_calls() -> Iterator[None]:
    with vendor.recorded():
        yield
