"""Who makes a torch device: a table of vendors, and telling apart those whose torch says "cuda" to all of them."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from importlib.util import find_spec

from pydantic import BaseModel, ConfigDict


class Vendor(BaseModel):
    """A row of the table; `vendors.toml` says what its fields mean."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vendor: str
    type: str
    package: str | None = None
    visible: tuple[str, ...] = ()
    collective: str = "gloo"
    graph: str | None = None
    tool: str | None = None
    hip: bool = False
    names: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether other vendors answer to the same device type of torch."""
        return self.type == "cuda"


@cache
def vendors() -> Mapping[str, Vendor]:
    """The table by the first word of device names."""
    text = resources.files(__package__).joinpath("vendors.toml").read_text(encoding="utf-8")
    return {name: Vendor(**row) for name, row in tomllib.loads(text).items()}


def maker_of(
    device: str,
    hip: bool,
    has_module: Callable[[str], bool] = lambda name: find_spec(name) is not None,
    has_tool: Callable[[str], bool] = lambda name: shutil.which(name) is not None,
) -> str | None:
    """Which vendor of the table made a card that torch calls "cuda"; None for NVIDIA's and AMD's own.

    Told by the name of the card first, then by modules of the vendor, then by its tool where no NVIDIA tool is, and a
    build of torch for HIP where a tool agrees.

    Args:
        device: the name of the card.
        hip: whether `torch.version.hip` is set.
    """
    shared = {name: row for name, row in vendors().items() if row.shared}
    by_name = [name for name, row in shared.items() if any(word in device.lower() for word in row.names)]
    by_module = [name for name, row in shared.items() if any(map(has_module, row.modules))]
    by_tool = [
        name
        for name, row in shared.items()
        if row.tool and row.hip == hip and has_tool(row.tool) and (hip or not has_tool("nvidia-smi"))
    ]
    return next(iter([*by_name, *by_module, *by_tool]), None)
