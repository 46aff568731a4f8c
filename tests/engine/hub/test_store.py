"""The store: complete models only, shared blobs, and damage that is noticed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from xinheng.core.errors import FormatError, RequestError
from xinheng.engine.hub import Manifest, Store


def add(store: Store, name: str, files: dict[str, bytes]) -> Manifest:
    with store.pulling(name) as folder:
        staged: dict[str, Path] = {}
        for path, data in files.items():
            staged[path] = folder / f"{len(staged)}"
            staged[path].write_bytes(data)
        return store.commit(name, f"test:{name}", staged)


def blobs(store: Store) -> set[str]:
    return {path.name for path in (store.root / "blobs").iterdir()}


def test_a_file_and_a_folder(store: Store) -> None:
    single = add(store, "one@1", {"weights.gguf": b"GGUF one"})
    several = add(store, "org/several", {"config.json": b"{}", "parts/a.bin": b"aa"})
    assert store.path(single).name == "weights.gguf"
    assert store.path(single).read_bytes() == b"GGUF one"
    assert (store.path(several) / "parts" / "a.bin").read_bytes() == b"aa"
    assert (single.size, several.size) == (8, 4)
    assert [manifest.name for manifest in store.list()] == ["one@1", "org/several"]
    assert store.verify("one") == store.verify("org/several") == ()
    assert list((store.root / "partial").glob("*/")) == []


def test_the_whole_store_can_be_moved(store: Store, tmp_path: Path) -> None:
    manifest = add(store, "one", {"a": b"a"})
    store.path(manifest)
    store.root.rename(tmp_path / "moved")
    assert Store(tmp_path / "moved").path(manifest).read_bytes() == b"a"


def test_names_with_versions(store: Store) -> None:
    add(store, "m@2", {"a": b"2"})
    add(store, "m@1", {"a": b"1"})
    assert [found.name for found in (store.show("m@2"), store.show("m"))] == ["m@2", "m@1"]
    assert store.find("n") is None
    with pytest.raises(RequestError, match=r"no model 'm@3'.*did you mean 'm@"):
        store.show("m@3")


def test_removing_keeps_what_another_model_holds(store: Store) -> None:
    add(store, "a", {"shared": b"both", "own": b"a"})
    kept = add(store, "b", {"shared": b"both", "own": b"b"})
    assert len(blobs(store)) == 3
    store.remove("a")
    assert blobs(store) == {file.blob for file in kept.files}
    assert (store.path(kept) / "shared").read_bytes() == b"both"
    assert store.verify("b") == ()
    with pytest.raises(RequestError, match="no model 'a'"):
        store.remove("a")
    store.remove("b")
    assert blobs(store) == set()


def test_pulling_again_replaces(store: Store) -> None:
    store.path(add(store, "m", {"old": b"old", "more": b"more"}))
    fresh = add(store, "m", {"new": b"new"})
    assert store.path(fresh).read_bytes() == b"new"
    assert not (store.path(fresh).parent / "old").exists()
    assert blobs(store) == {fresh.files[0].blob}


def test_damage_is_found_and_healed_by_the_next_pull(store: Store) -> None:
    manifest = add(store, "m", {"a": b"good", "b": b"fine"})
    blob = store.root / "blobs" / manifest.files[0].blob
    blob.write_bytes(b"evil")
    (problem,) = store.verify("m")
    assert problem.startswith("a: SHA-256 is ") and manifest.files[0].sha256 in problem
    blob.write_bytes(b"cut")
    with pytest.raises(FormatError, match=r"model 'm': a is missing or cut short .*pull it again"):
        store.path(manifest)
    blob.unlink()
    assert "is missing" in store.verify("m")[0]
    add(store, "m", {"a": b"good", "b": b"fine"})
    assert store.verify("m") == ()


def test_a_spoilt_manifest_is_named(store: Store) -> None:
    add(store, "m", {"a": b"a"})
    path = store.root / "manifests" / "m.json"
    for text in ("{", "[]", '{"name": "m"}', path.read_text().replace('"path": "a"', '"path": "../a"')):
        path.write_text(text)
        with pytest.raises(FormatError, match=r"m\.json|no plain relative path"):
            store.list()


@pytest.mark.parametrize("path", ["../a", "/a", "a/../b", "a\\b", "", ".", "a//b"])
def test_paths_that_leave_the_model_are_refused(store: Store, path: str) -> None:
    with pytest.raises(FormatError, match="no plain relative path"):
        add(store, "m", {path: b"a"})


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a b", "a\0b", "/a"])
def test_names_that_are_no_names_are_refused(store: Store, name: str) -> None:
    with pytest.raises(RequestError, match="cannot be the name of a stored model"), store.pulling(name):
        pass


def test_an_interrupted_pull_goes_on_and_a_bad_one_starts_afresh(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt), store.pulling("m") as folder:
        (folder / "half").write_bytes(b"kept")
        raise KeyboardInterrupt
    with pytest.raises(FormatError), store.pulling("m") as folder:
        assert (folder / "half").read_bytes() == b"kept"
        raise FormatError("not what it claims to be")
    with store.pulling("m") as folder:
        assert list(folder.iterdir()) == []


KILLED_WHILE_COMMITTING = """
import os, signal, sys
from pathlib import Path
from xinheng.engine.hub import Store

store = Store(Path(sys.argv[1]))
with store.pulling("m") as folder:
    (folder / "a").write_bytes(b"a" * 100)
    store.commit("m", "test:m", {"a": folder / "a"}, lambda *told: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_killed_pull_leaves_nothing_visible_and_no_lock(store: Store) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_COMMITTING, str(store.root)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert store.list() == ()
    assert not (store.root / "blobs").exists()
    assert store.path(add(store, "m", {"a": b"again"})).read_bytes() == b"again"
