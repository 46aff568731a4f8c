"""`xinheng run-onnx`: one run of an ONNX model on a device, perhaps compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Assignments, DeviceName, Json, settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from xinheng.core.interop import ImportedModel
    from xinheng.core.ir import TensorType

    Arrays = dict[str, NDArray[Any]]


def run_onnx(
    file: Annotated[Path, typer.Argument(help="An ONNX model.")],
    device: DeviceName = None,
    input: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE.NPY", help="Elements of an input; others are random."),
    ] = None,
    fix: Annotated[
        list[str] | None,
        typer.Option("--fix", metavar="NAME=FILE.NPY", help="As --input, but known at import, as shapes have to be."),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option("--size", metavar="NAME=N", help="A symbolic size of random inputs; 4 if not given."),
    ] = None,
    integers: Annotated[int, typer.Option(min=1, help="Random integers are below this.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    compare: Annotated[bool, typer.Option("--compare", help="Run ONNX Runtime too and show the difference.")] = False,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Largest difference with --compare, as a share of the largest magnitude.")
    ] = 1e-3,
    set: Assignments = None,
    json: Json = False,
) -> None:
    """Run an ONNX model once with given or random inputs."""
    from xinheng.core.compiler import compile
    from xinheng.core.errors import DeviceError
    from xinheng.core.interop import import_onnx
    from xinheng.engine.loading import open_devices

    from ..output import print_json

    runtime, _ = settings(set, device)
    fixed = _files(fix)
    model = import_onnx(file, fixed)
    feeds = _feeds(model, _files(input), _sizes(size), integers, seed)
    devices = open_devices(runtime)
    executable = compile(model.graph, devices.main, fallback=devices.fallback)
    bound = executable.bind({name: executable.prepare(name, array) for name, array in model.parameters.items()})
    bound.run({model.inputs[name]: array for name, array in feeds.items()}).wait()
    made = {name: devices.main.download(bound.outputs[ours]) for name, ours in model.outputs.items()}
    wanted = _by_onnx_runtime(file, {**feeds, **fixed}) if compare else {}
    rows = [_row(name, array, wanted.get(name)) for name, array in made.items()]
    if json:
        facts = {"device": devices.main.spec, "inputs": {name: list(array.shape) for name, array in feeds.items()}}
        print_json({**facts, "outputs": rows, "receipt": executable.receipt.to_json()})
    else:
        _print(rows, executable.receipt.summary())
    wrong = [row for row in rows if row.get("difference") is not None and not row["difference"] <= tolerance]
    if wrong:
        worst = wrong[0]
        share = f"{worst['difference']:.2g}"
        raise DeviceError(
            f"{devices.main.spec}: output {worst['name']!r} differs from ONNX Runtime by {share} of its largest "
            "magnitude; --device reference, or overrides of single ops, tell where it comes from"
        )


def _files(assignments: list[str] | None) -> Arrays:
    """Arrays of numpy files by name."""
    import numpy as np

    from xinheng.core.errors import FormatError, SettingsError

    made: Arrays = {}
    for assignment in assignments or []:
        name, equals, path = assignment.rpartition("=")
        if not equals or not name:
            raise SettingsError(f"{assignment!r} is not of the form name=file.npy")
        try:
            made[name] = np.load(path)
        except (OSError, ValueError) as error:
            raise FormatError(f"{path}: this is no array of numpy: {error}") from error
    return made


def _sizes(assignments: list[str] | None) -> dict[str, int]:
    from xinheng.core.errors import SettingsError

    made = {}
    for assignment in assignments or []:
        name, _, value = assignment.partition("=")
        if not value.isdigit():
            raise SettingsError(f"--size {assignment!r} is not of the form name=number")
        made[name] = int(value)
    return made


def _feeds(model: ImportedModel, given: Arrays, sizes: dict[str, int], integers: int, seed: int) -> Arrays:
    """An array for every input: the given one, or random elements of its type."""
    import numpy as np

    from xinheng.core.errors import SettingsError, nearest
    from xinheng.core.ir.dim import symbols
    from xinheng.core.ir.dtype import cast_to

    names = list(model.inputs)
    for name in given:
        if name not in names:
            raise SettingsError(f"--input: the model has no input {name!r}{nearest(name, names)}; it has {names}")
    kinds = {v.name: v.tensor for v in model.graph.inputs}
    known = {s.name for kind in kinds.values() for d in kind.shape for s in symbols(d)}
    for name in sizes:
        if name not in known:
            raise SettingsError(f"--size: the inputs have no size {name!r}; they have {sorted(known) or 'none'}")
    for name, array in given.items():
        shape = kinds[model.inputs[name]].shape
        for dim, size in zip(shape, array.shape, strict=False):
            found = [s.name for s in symbols(dim)]
            if len(found) == 1 and str(dim) == found[0]:
                sizes.setdefault(found[0], size)
    rng = np.random.default_rng(seed)
    sizes = dict.fromkeys(known, 4) | sizes
    made: Arrays = {}
    for name in names:
        kind = kinds[model.inputs[name]]
        made[name] = cast_to(given[name], kind.dtype) if name in given else _random(kind, sizes, integers, rng)
    return made


def _random(kind: TensorType, sizes: Mapping[str, int], integers: int, rng: np.random.Generator) -> NDArray[Any]:
    import numpy as np

    from xinheng.core.ir.dim import evaluate
    from xinheng.core.ir.dtype import cast_to

    shape = tuple(evaluate(d, sizes) for d in kind.shape)
    if kind.dtype.is_float:
        return cast_to(rng.normal(size=shape), kind.dtype)
    top = 2 if kind.dtype.kind == "bool" else integers
    return np.asarray(rng.integers(0, top, shape)).astype(kind.dtype.numpy)


def _by_onnx_runtime(file: Path, feeds: Arrays) -> Arrays:
    """The outputs of ONNX Runtime on its CPU provider by name."""
    from importlib import import_module

    from xinheng.core.errors import ModelError

    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ModuleNotFoundError:
        raise ModelError("--compare needs ONNX Runtime, which is not installed; pip install onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        made = session.run(None, feeds)
    except Exception as error:  # its errors have no common class; they all mean that there is nothing to compare with
        raise ModelError(f"{file}: ONNX Runtime does not run it: {error}") from error
    return dict(zip([output.name for output in session.get_outputs()], made, strict=True))


def _row(name: str, array: NDArray[Any], wanted: NDArray[Any] | None) -> dict[str, Any]:
    """What to tell about an output."""
    import numpy as np

    values = array.astype(np.float64)
    row: dict[str, Any] = {"name": name, "dtype": array.dtype.name, "shape": list(array.shape), "difference": None}
    if values.size:
        row |= {"min": float(values.min()), "max": float(values.max()), "mean": float(values.mean())}
    if wanted is not None:
        if wanted.shape != array.shape:
            row["difference"] = float("inf")
        else:
            size = float(np.max(np.abs(wanted.astype(np.float64)), initial=0.0)) or 1.0
            apart = np.abs(values - wanted.astype(np.float64))
            same = (values == wanted) | (np.isnan(values) & np.isnan(wanted.astype(np.float64)))
            row["difference"] = float(np.max(np.where(same, 0.0, apart), initial=0.0)) / size
    return row


def _print(rows: list[dict[str, Any]], summary: str) -> None:
    from ..output import print_table

    columns = ["output", "type", "smallest", "largest", "mean"]
    compared = any(row["difference"] is not None for row in rows)
    shown = []
    for row in rows:
        cells = [row["name"], f"{row['dtype']}{row['shape']}"]
        cells += [f"{row[key]:.6g}" if key in row else "" for key in ("min", "max", "mean")]
        shown.append([*cells, f"{row['difference']:.2g}"] if compared else cells)
    print_table([*columns, "off by"] if compared else columns, shown)
    print(f"\n{summary}")
