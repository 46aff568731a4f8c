"""Options that several commands share, and the settings that follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from xinheng.core.settings import RuntimeSettings
    from xinheng.engine.settings import EngineSettings

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
DeviceName = Annotated[
    str | None, typer.Option("--device", help="auto, or name[:ordinals or word][@runtime]; see 'xinheng devices'.")
]
DtypeName = Annotated[str | None, typer.Option("--dtype", help="Element type of activations, such as bfloat16.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Any setting; may be given several times.")
]


def settings(
    assignments: list[str] | None, device: str | None = None, dtype: str | None = None
) -> tuple[RuntimeSettings, EngineSettings]:
    """The settings in force: options win over the environment, which wins over `xinheng.toml`.

    Raises:
        SettingsError: a key or value is wrong; the message says where it stands.
    """
    from xinheng.core.errors import SettingsError
    from xinheng.core.settings import RuntimeSettings, load_settings
    from xinheng.engine.settings import EngineSettings

    given: dict[str, str] = {}
    for assignment in assignments or []:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise SettingsError(f"--set {assignment!r} is not of the form table.key=value")
        given[key.strip()] = value
    if device is not None:
        given["runtime.device"] = device
    if dtype is not None:
        given["runtime.dtype"] = dtype
    loaded = load_settings([RuntimeSettings, EngineSettings], given)
    return loaded[RuntimeSettings], loaded[EngineSettings]
