"""`xinheng conformance fingerprint`: how a device computes, deduced from what it computes."""

from __future__ import annotations

from ...options import Assignments, DeviceName, Json, settings


def fingerprint(device: DeviceName = None, set: Assignments = None, json: Json = False) -> int:
    """Find out how a device adds, rounds and overflows; the exit status is 1 if it declares otherwise."""
    from xinheng.conformance.fingerprints.fingerprint import contradictions
    from xinheng.conformance.fingerprints.fingerprint import fingerprint as taken
    from xinheng.core.hal import DeviceOptions, Numerics
    from xinheng.core.plugins import PluginManager

    from ...output import print_json, print_table

    runtime, _ = settings(set, device)
    numerics = Numerics(runtime.numerics, runtime.overrides)
    options = DeviceOptions(runtime.threads, runtime.cache_dir, numerics)
    opened = PluginManager(disabled=runtime.plugins_disabled).open(runtime.device, options)
    try:
        found = taken(opened, numerics)
        against = contradictions(found, opened.capabilities.arithmetic)
    finally:
        opened.close()
    if json:
        print_json(found.model_dump() | {"line": str(found), "contradictions": against})
    else:
        print_table(("trait", "value", "evidence"), [(name, t.value, t.evidence) for name, t in found.traits()])
        print(f"\n{found}")
        for sentence in against:
            print(f"contradiction: {sentence}")
    return 1 if against else 0
