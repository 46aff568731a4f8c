"""`xinheng conformance attribute`: the ops and layers behind a model that is off on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...options import Assignments, DeviceName, DtypeName, Json, settings

if TYPE_CHECKING:
    from xinheng.conformance.attribution import Attribution


def attribute(
    model: Annotated[str, typer.Argument(help="A path, pypi:<package>, or the name of a stored model.")],
    device: DeviceName = None,
    dtype: DtypeName = None,
    reference: Annotated[str, typer.Option(help="The trusted device, which computes in strict float32.")] = "cpu:0",
    tokens: Annotated[int, typer.Option(min=32, help="Tokens of text that it is measured by.")] = 2048,
    set: Assignments = None,
    json: Json = False,
) -> int:
    """Find the ops and the first layer that a model's deviation comes from; the exit status is 1 if there is any."""
    from xinheng.conformance.attribution import attribute as attributed
    from xinheng.core.baseline import Trust
    from xinheng.core.hal import DeviceOptions, Numerics
    from xinheng.core.model_probe import measured_model
    from xinheng.core.plugins import PluginManager

    from ...output import print_json

    runtime, _ = settings(set, device, dtype)
    numerics = Numerics(runtime.numerics, runtime.overrides)
    manager, measured = PluginManager(disabled=runtime.plugins_disabled), measured_model(model)
    trusted = manager.open(reference, DeviceOptions(runtime.threads, runtime.cache_dir))
    opened = manager.open(runtime.device, DeviceOptions(runtime.threads, runtime.cache_dir, numerics))
    try:
        trust = Trust(measured, trusted, measured.texts(tokens), runtime.cache_dir / "baselines")
        found = attributed(trust, opened, numerics, runtime.dtype)
    finally:
        opened.close()
        trusted.close()
    if json:
        print_json(found.model_dump() | {"deviates": found.deviates})
    else:
        _print(found)
    return 1 if found.deviates else 0


def _print(found: Attribution) -> None:
    from ...output import print_table

    print(
        f"{found.model} on {found.device} in {found.dtype}: mean KL {found.kl:.3g} ({found.kl_low:.3g} to "
        f"{found.kl_high:.3g}) from {found.reference} over {found.tokens:,} tokens; correct runs: {found.noise:.3g}"
    )
    if not found.deviates:
        print("nothing to explain: it is no further off than correct runs may be")
        return
    rows = [
        (", ".join(g.ops), f"{g.gain:.3g}", f"{g.gain_low:.3g} to {g.gain_high:.3g}", ", ".join(g.healed) or "none")
        for g in found.guilty
    ]
    if rows:
        print_table(("guilty", "KL it explains", "interval", "right when decomposed"), rows)
    left = f"mean KL left with these computed by the reference: {found.residual:.3g}"
    print(left if found.explained else f"{left}; that is more than noise, and no op alone or with others explains it")
    if found.first_layer is not None:
        where = f"layer {found.first_layer}" if found.first_layer >= 0 else "the embedding"
        print(f"first output beyond twice the noise: {where}")
    print(f"{found.runs} ways to run the model were compared")
