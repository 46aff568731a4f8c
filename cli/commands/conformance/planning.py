"""Options that name what is to be run, and the plan that follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from xinheng.conformance.running.plan import Plan
    from xinheng.core.settings import RuntimeSettings

Level = Annotated[str, typer.Option("--level", help="L0 to L4: what this level needs; without it, everything.")]
TierName = Annotated[
    str, typer.Option("--tier", help="default takes minutes, full an hour, exhaustive as long as it takes.")
]
Suites = Annotated[
    str, typer.Option("--suite", metavar="NAME,...", help="Suites; without it those that the level needs.")
]
Ops = Annotated[str, typer.Option("--op", metavar="OP,...", help="Only these ops; then no level is decided.")]
Dtypes = Annotated[str, typer.Option("--dtype", metavar="DTYPE,...", help="Only these; then no level is decided.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="An option of a suite, such as a model.")
]


def planned(
    runtime: RuntimeSettings,
    *,
    level: str = "",
    tier: str = "default",
    suite: str = "",
    op: str = "",
    dtype: str = "",
    option: list[str] | None = None,
    shard: str = "",
    mode: str = "test",
) -> Plan:
    """The plan that options ask for.

    Raises:
        SettingsError: an option has no such value.
    """
    from xinheng.conformance.case import Tier
    from xinheng.conformance.running.levels import levels, up_to
    from xinheng.conformance.running.plan import Plan, Shard
    from xinheng.core.errors import SettingsError
    from xinheng.core.hal import Numerics

    if tier.upper() not in Tier.__members__:
        raise SettingsError(f"--tier {tier!r} is none of {', '.join(name.lower() for name in Tier.__members__)}")
    options = {}
    for text in option or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--option {text!r} is not of the form key=value")
        options[name] = value
    parts = up_to(level) if level else levels()
    needed = dict.fromkeys(name for part in parts for name in part.suites) if mode == "test" else {"ops": None}
    return Plan(
        runtime.device,
        suites=_listed(suite) or tuple(needed),
        level=level,
        tier=Tier[tier.upper()],
        ops=_listed(op),
        dtypes=_listed(dtype),
        mode=mode,
        options=options,
        numerics=Numerics(runtime.numerics, runtime.overrides),
        shard=Shard.parse(shard or "1/1"),
        disabled=tuple(runtime.plugins_disabled),
        cache_dir=str(runtime.cache_dir),
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
