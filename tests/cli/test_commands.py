"""The commands that show devices, ops, settings, models and receipts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xinheng.core.ops import OPSET
from xinheng.engine.hub import Store

from ..engine import tiny
from .conftest import Command

SIM = ("--device", "sim:exact")


def test_devices(xinheng: Command) -> None:
    done = xinheng("devices")
    assert (done.status, done.err) == (0, "")
    rows = {line.split()[0]: line for line in done.out.splitlines()}
    assert "available" in rows["cpu:0"] and "torch 2" in rows["cpu:0"]
    assert "emulated" in rows["sim:exact"]
    disabled = xinheng("devices", "--set", 'runtime.plugins_disabled=["cpu"]')
    assert "disabled" in disabled.out and "plugins_disabled" in disabled.out
    records = {record["name"]: record for record in json.loads(xinheng("devices", "--json").out)}
    assert records["cpu"]["status"] == "available"
    assert records["cpu"]["devices"][0]["spec"] == "cpu:0"


def test_ops(xinheng: Command) -> None:
    done = xinheng("ops")
    assert {line.split()[0] for line in done.out.splitlines()[1:]} == set(OPSET)
    listed = json.loads(xinheng("ops", "--json").out)
    assert {entry["name"] for entry in listed} == set(OPSET)
    assert all(entry["summary"] and entry["kind"] in ("primitive", "composite") for entry in listed)


@pytest.mark.parametrize("name", sorted(OPSET))
def test_every_op_can_be_shown(xinheng: Command, name: str) -> None:
    done = xinheng("ops", name)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{name}(")
    assert "Reference (float64):" in done.out
    data = json.loads(xinheng("ops", name, "--json").out)
    assert data["name"] == name
    assert (data["decomposition"] is None) == (not OPSET[name].composite)


def test_an_unknown_op_is_a_sentence(xinheng: Command) -> None:
    done = xinheng("ops", "rms_nrom")
    assert done.status == 1
    assert "rms_nrom" in done.err and "rms_norm" in done.err


def test_explain_shows_the_receipt(xinheng: Command, model: Path) -> None:
    done = xinheng("explain", model, "--device", "cpu:0")
    assert done.status == 0
    rows = {line.split()[0]: line.split() for line in done.out.splitlines() if line and line[0].isalpha()}
    assert rows["linear"][1] == "15" and rows["linear"][3] == "cpu:0"
    assert rows["paged_attention"][1] == "2"
    data = json.loads(xinheng("explain", model, "--json", *SIM).out)
    assert data["device"] == "sim:exact"
    assert {line["kernel"] for line in data["lines"]} == {"reference"}
    assert data["summary"].endswith("ops on sim:exact")


def test_explain_shows_the_graph_which_can_be_read_back(xinheng: Command, model: Path) -> None:
    from xinheng.core.ir import parse_graph

    text = xinheng("explain", model, "--graph", *SIM).out
    graph = parse_graph(text, OPSET)
    assert str(graph).strip() == text.strip()
    assert sum(node.op.name == "paged_attention" for node in graph.nodes) == 2


def test_explain_times_kernels_and_writes_a_trace(xinheng: Command, model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    done = xinheng("explain", model, "--time", "--trace", trace, "--prompt", 8, "--tokens", 3, *SIM)
    assert (done.status, done.err) == (0, "")
    assert "prefill: " in done.out and "decode: " in done.out
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    spans = [event for event in events if event["ph"] == "X"]
    assert set(names.values()) == {"prefill", "decode"} and len(spans) == len(events) - 2
    attended = [names[event["tid"]] for event in spans if event["name"] == "paged_attention"]
    assert attended == ["prefill"] * 2 + ["decode"] * 2 * 2  # two layers, two steps after prefill
    assert all(event["dur"] >= 0 for event in spans)
    data = json.loads(xinheng("explain", model, "--time", "--json", "--prompt", 8, "--tokens", 3, *SIM).out)
    attention = {
        phase: [row for row in rows if row["op"] == "paged_attention"] for phase, rows in data["times"].items()
    }
    assert [(phase, rows[0]["calls"]) for phase, rows in attention.items()] == [("prefill", 2), ("decode", 4)]
    assert [(phase, told["steps"]) for phase, told in data["phases"].items()] == [("prefill", 1), ("decode", 2)]
    assert all(rows[0]["bytes_per_s"] > 0 and rows[0]["operations_per_s"] > 0 for rows in attention.values())


def test_explain_into_a_folder_that_is_not_there_is_a_sentence(xinheng: Command, model: Path, tmp_path: Path) -> None:
    done = xinheng("explain", model, "--trace", tmp_path / "no" / "trace.json", "--prompt", 2, "--tokens", 1, *SIM)
    assert done.status == 1
    assert done.err == f"xinheng: {tmp_path}/no/trace.json: No such file or directory\n"


def test_overrides_change_the_receipt(xinheng: Command, model: Path) -> None:
    done = xinheng("explain", model, "--json", "--set", "runtime.overrides.rms_norm=decompose", *SIM)
    data = json.loads(done.out)
    asked = [["device", "the override asks for the decomposition"]]
    assert {"op": "rms_norm", "count": 5, "refused": asked} in data["decomposed"]
    assert "rms_norm" not in {line["op"] for line in data["lines"]}


def test_explain_says_why_an_op_was_decomposed_and_what_crosses(xinheng: Command, model: Path) -> None:
    overrides = [f"runtime.overrides.{word}" for word in ("rms_norm=decompose", "silu_and_mul=reference")]
    done = xinheng("explain", model, "--device", "cpu:0", "--set", overrides[0], "--set", overrides[1])
    rows = {line.split()[0]: line for line in done.out.splitlines() if line and line[0].isalpha()}
    assert "the override asks for the decomposition" in rows["rms_norm"] and " decomposed " in rows["rms_norm"]
    assert "reference (moved)" in rows["silu_and_mul"]
    # two layers, of 2048 tokens at most, with 96 float32 each
    assert "4 tensors cross from cpu:0 to reference in each run, at most 3.0 MiB" in done.out
    assert "2 tensors cross from reference to cpu:0 in each run, at most 1.5 MiB" in done.out


@pytest.fixture
def stored(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with one model, in the folder the commands use."""
    monkeypatch.setenv("XINHENG_RUNTIME__CACHE_DIR", str(tmp_path / "cache"))
    store = Store(tmp_path / "cache")
    with store.pulling("tiny@1") as folder:
        files = {}
        for path in model.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
            files[path.name] = folder / path.name
        store.commit("tiny@1", "pypi:tiny==1", files)
    return store


def test_pull_of_what_is_there_gives_its_place(xinheng: Command, model: Path, stored: Store) -> None:
    assert xinheng("pull", model) == (0, f"{model}\n", "")
    place = stored.path(stored.show("tiny"))
    assert xinheng("pull", "tiny") == (0, f"{place}\n", "")
    assert json.loads(xinheng("pull", "tiny", "--json").out) == {"model": "tiny", "path": str(place)}


@pytest.mark.parametrize("reference", ["nothing", "htp://x", "pipy:x", "pypi:"])
def test_pull_of_nonsense_is_a_sentence(xinheng: Command, stored: Store, reference: str) -> None:
    done = xinheng("pull", reference)
    assert done.status == 1
    assert done.err.startswith("xinheng: ") and done.err.count("\n") == 1


def test_a_stored_model_is_listed_shown_run_and_removed(xinheng: Command, stored: Store) -> None:
    rows = xinheng("list").out.splitlines()
    assert rows[1].split()[:2] == ["tiny@1", "pypi:tiny==1"]
    (entry,) = json.loads(xinheng("list", "--json").out)
    assert entry["name"] == "tiny@1" and len(entry["files"]) == 4
    shown = json.loads(xinheng("show", "tiny", "--verify", "--json").out)
    assert (shown["architecture"], shown["layers"], shown["context"], shown["vocabulary"]) == ("llama", 2, 256, 304)
    assert (shown["tokens"], shown["ends"], shown["chat_template"]) == (300, [0, 2], True)
    assert shown["weights"] == {"float32": 16}
    assert "sha256:" in xinheng("show", "tiny").out
    assert xinheng("run", "tiny", "hi", "--max-tokens", 2, *SIM).status == 0
    assert "removed tiny@1" in xinheng("rm", "tiny").out
    assert xinheng("list").out.splitlines() == ["model  source  size  files"]
    gone = xinheng("rm", "tiny")
    assert gone.status == 1 and "no model 'tiny'" in gone.err


def test_damage_is_found_and_is_status_1(xinheng: Command, stored: Store) -> None:
    (weights,) = [file for file in stored.show("tiny").files if file.path == "model.safetensors"]
    blob = stored.root / "blobs" / weights.blob
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    done = xinheng("show", "tiny", "--verify", "--json")
    assert done.status == 1
    assert "model.safetensors: SHA-256 is" in json.loads(done.out)["damaged"][0]
    blob.write_bytes(data[:100])
    assert xinheng("show", "tiny", "--verify").status == 1
    done = xinheng("run", "tiny", "hi", *SIM)
    assert done.status == 1 and "cut short" in done.err


def test_show_of_a_path_has_no_checksums_to_verify(xinheng: Command, model: Path) -> None:
    assert xinheng("show", model).status == 0
    done = xinheng("show", model, "--verify")
    assert done.status == 1 and "no checksums" in done.err


def test_show_of_what_is_no_model_is_a_sentence(xinheng: Command, tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "model", tiny.LLAMA | {"model_type": "mamba"})
    done = xinheng("show", folder)
    assert done.status == 1 and "no builder for architecture 'mamba'" in done.err
    assert xinheng("show", tmp_path).status == 1


def test_config_says_where_each_setting_comes_from(
    xinheng: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "xinheng.toml").write_text("[engine]\nmax_num_seqs = 3\nprefill_chunk = 8\n[runtime]\nthreads = 2\n")
    monkeypatch.setenv("XINHENG_ENGINE__PREFILL_CHUNK", "9")
    monkeypatch.setenv("XINHENG_RUNTIME__THREADS", "4")
    arguments = ("--set", "runtime.threads=1", "--device", "sim:exact", "--set", "engine.cache_memory=2GiB")
    data = json.loads(xinheng("config", "--json", *arguments).out)
    assert data["file"] == str(tmp_path / "xinheng.toml")
    found = {name: (entry["value"], entry["origin"]) for name, entry in data["settings"].items()}
    assert found["engine.max_num_seqs"] == (3, f"xinheng.toml ({tmp_path}/xinheng.toml)")
    assert found["engine.prefill_chunk"] == (9, "environment XINHENG_ENGINE__PREFILL_CHUNK")
    assert found["runtime.threads"] == (1, "argument")
    assert found["runtime.device"] == ("sim:exact", "argument")
    assert found["engine.cache_memory"] == (2 * 2**30, "argument")
    assert found["runtime.fallback"] == ("error", "default")
    rows = {line.split()[0]: line for line in xinheng("config", *arguments).out.splitlines()}
    assert rows["engine.prefill_chunk"].split() == [
        *("engine.prefill_chunk", "9", "environment", "XINHENG_ENGINE__PREFILL_CHUNK")
    ]
    assert rows["engine.block_size"].split()[1:] == ["unset", "default"]


@pytest.mark.parametrize(
    ("text", "variable", "says"),
    [
        ("[engin]\nx = 1\n", None, "unknown table"),
        ("[engine]\nmax_seqs = 1\n", None, "max_seqs"),
        ("[engine\n", None, "no valid TOML"),
        ("", ("XINHENG_ENGINE__MAX_SEQS", "1"), "XINHENG_ENGINE__MAX_SEQS"),
        ("", ("XINHENG_ENGINE__MAX_NUM_SEQS", "many"), "XINHENG_ENGINE__MAX_NUM_SEQS"),
    ],
)
def test_wrong_settings_are_refused_wherever_they_stand(
    xinheng: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    variable: tuple[str, str] | None,
    says: str,
) -> None:
    (tmp_path / "xinheng.toml").write_text(text)
    if variable is not None:
        monkeypatch.setenv(*variable)
    done = xinheng("config")
    assert done.status == 1
    assert says in done.err
