"""Reads what memory gives right now, whenever asked: on a shared host that changes by the minute."""

from __future__ import annotations

import argparse
from typing import Any

from protocol import Peer, serve

from xinheng.core.hal import DeviceOptions
from xinheng.core.plugins import PluginManager
from xinheng.core.settings import RuntimeSettings


class Probe(Peer):
    """`--model` is the file whose size the working set has."""

    def load(self, args: argparse.Namespace) -> None:
        cache = RuntimeSettings().cache_dir
        self.device = PluginManager().open("cpu", DeviceOptions(threads=args.threads, cache_dir=cache))

    def about(self) -> dict[str, Any]:
        return {"processor": self.device.name}

    def limits(self, working_set: int) -> dict[str, Any]:
        found = self.device.limits(working_set)
        if found is None:
            return {"error": "the processor's limits cannot be measured without the native kernels"}
        return {"bandwidth": found.bandwidth, "working_set": found.working_set, "rates": dict(found.rates)}


serve(Probe())
