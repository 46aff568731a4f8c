"""`xinheng import`: a Hugging Face model by way of ONNX, or an ONNX model, and what of it is not supported."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Assignments, DeviceName, Json, settings

if TYPE_CHECKING:
    from xinheng.core.interop import ImportedModel

EXPORTER = "xinheng.backends._torch.export"
"""The program that exports; it runs in a process of its own, since a framework has to be loaded for it."""


def import_model(
    model: Annotated[
        str, typer.Argument(help="A folder with a Hugging Face causal model (hf:FOLDER), or an ONNX file.")
    ],
    out: Annotated[Path | None, typer.Option(help="Keep the exported ONNX model here.")] = None,
    device: DeviceName = None,
    set: Assignments = None,
    json: Json = False,
) -> None:
    """Import a model that has no builder of its own, and report which of its ops are supported."""
    from xinheng.core.errors import GraphError
    from xinheng.core.interop import import_onnx, missing_ops

    from ..output import print_json, print_table

    with tempfile.TemporaryDirectory() as folder:
        file = _onnx_file(model, out or Path(folder) / "model.onnx")
        missing = missing_ops(file)
        imported, refusal = None, None
        try:
            imported = import_onnx(file)
        except GraphError as error:
            refusal = str(error)
        lacking = _lacking(imported, set, device) if imported is not None else None
    report = _report(imported) | {"model": model, "unsupported": missing, "refusal": refusal, "device": lacking}
    if out is not None:
        report["onnx"] = str(file)
    if json:
        print_json(report)
    elif imported is not None:
        tensors = [(side, name, kind) for side in ("input", "output") for name, kind in report[f"{side}s"].items()]
        print_table(("side", "tensor", "type"), tensors)
        print(f"\n{len(imported.graph.nodes)} nodes of {len(report['ops'])} ops, {len(imported.parameters)} parameters")
        print(lacking or "every op has a kernel or a decomposition on this device")
    if missing:
        listed = ", ".join(f"{op} ({count} nodes)" for op, count in missing.items())
        raise GraphError(f"{model}: ONNX ops without an import rule: {listed}; {refusal or 'the rest is imported'}")
    if refusal is not None:
        raise GraphError(f"{model}: {refusal}")


def _report(imported: ImportedModel | None) -> dict[str, Any]:
    """The tensors at the border of a graph, and how many nodes there are of each op."""
    from collections import Counter

    if imported is None:
        return {"inputs": {}, "outputs": {}, "ops": {}}
    graph = imported.graph
    return {
        "inputs": {value.name: str(value.type) for value in graph.inputs},
        "outputs": {name: str(value.type) for name, value in graph.outputs.items()},
        "ops": dict(Counter(node.op.name for node in graph.nodes).most_common()),
    }


def _onnx_file(model: str, target: Path) -> Path:
    """The ONNX file of a model, which is exported to `target` unless it is one already."""
    import os
    import subprocess
    import sys

    from xinheng.core.errors import ModelError

    path = Path(model.removeprefix("hf:"))
    if path.is_file():
        return path
    if not (path / "config.json").is_file():
        raise ModelError(f"{path}: there is no config.json; give a folder with a Hugging Face model, or an ONNX file")
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-m", EXPORTER, str(path), str(target)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        told = done.stderr.strip().splitlines()
        raise ModelError(f"{path}: the export to ONNX failed: {told[-1] if told else f'exit status {done.returncode}'}")
    return target


def _lacking(imported: ImportedModel, assignments: Any, device: str | None) -> str | None:
    """What the device cannot run of a model, or None."""
    from xinheng.core.compiler import compile
    from xinheng.core.errors import UnsupportedOp
    from xinheng.engine.loading import open_devices

    runtime, _ = settings(assignments, device)
    devices = open_devices(runtime)
    try:
        compile(imported.graph, devices.main, fallback=devices.fallback)
    except UnsupportedOp as error:
        return str(error)
    return None
