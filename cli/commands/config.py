"""`xinheng config`: the settings in force."""

from __future__ import annotations

from ..options import Assignments, DeviceName, DtypeName, Json, settings


def config(device: DeviceName = None, dtype: DtypeName = None, set: Assignments = None, json: Json = False) -> None:
    """Show every setting in force and where it came from."""
    from xinheng.core.settings import config_file, origins

    from ..output import print_json, print_table

    rows = []
    for group in settings(set, device, dtype):
        source = origins(group)
        rows += [(f"{group.table}.{key}", value, source[key]) for key, value in group.model_dump(mode="json").items()]
    if json:
        print_json({"file": config_file(), "settings": {k: {"value": v, "origin": o} for k, v, o in rows}})
        return
    print_table(("setting", "value", "from"), [(k, "unset" if v is None else v, o) for k, v, o in rows])
