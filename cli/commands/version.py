"""`xinheng version`: what is installed."""

from __future__ import annotations

from ..options import Json


def version(json: Json = False) -> None:
    """Show the versions of xinheng, of its contract with plugins, and of the frameworks that are installed."""
    import platform
    import re
    from importlib import metadata

    from xinheng.core.hal.backend import API_VERSION
    from xinheng.core.ops import OPSET

    from ..output import print_json

    frameworks = {}
    wanted = (re.match(r"[\w.-]+", requirement) for requirement in metadata.requires("xinheng") or [])
    for name in sorted({match[0] for match in wanted if match is not None} - {"xinheng"}):
        try:
            frameworks[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    data = {
        "xinheng": metadata.version("xinheng"),
        "plugin_api": ".".join(map(str, API_VERSION)),
        "op_set": OPSET.version,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": frameworks,
    }
    if json:
        print_json(data)
        return
    print(f"xinheng {data['xinheng']} (plugin API {data['plugin_api']}, op set {data['op_set']})")
    print(f"python {data['python']} on {data['platform']}")
    for name, number in frameworks.items():
        print(f"{name} {number}")
