"""A whole graph as one session: states go in as inputs and come out as outputs, parameters are part of the model."""

from __future__ import annotations

import time
from typing import Any

from xinheng.core.errors import DeviceError
from xinheng.core.hal import Done, GraphExecutable, Span


class OnnxExecutable(GraphExecutable):
    """A graph that becomes a session once its parameters are known."""

    def bind(self, buffers: Any) -> OnnxBound:
        self.check_buffers(buffers)
        return OnnxBound(self, buffers)


class OnnxBound:
    """The session of a graph with its parameters, and the states it reads and replaces."""

    def __init__(self, executable: OnnxExecutable, buffers: Any) -> None:
        graph = executable.graph
        self._exe, self._fixed = executable, {v.name: buffers[v.name] for v in graph.inputs if v.name in buffers}
        self._states = {state.name: buffers[state.name] for state, _ in graph.states}
        self._session = executable.device.session(graph, {v.name: buffers[v.name] for v in graph.parameters})
        self._wanted = {i.name for i in self._session.get_inputs()}
        self.outputs: dict[str, Any] = {}

    def run(self, inputs: Any, dims: Any = None, profile: Any = None, host: Any = None) -> Done:
        given = {**self._fixed, **inputs}
        self._exe.check_inputs(given, dims)
        feeds = {name: value for name, value in given.items() if name in self._wanted}
        for name, tensors in self._states.items():
            feeds |= {f"past.{name}.{part}": tensor for part, tensor in tensors.items()}
        start = time.perf_counter()
        try:
            made = dict(zip((o.name for o in self._session.get_outputs()), self._session.run(None, feeds), strict=True))
        except Exception as error:  # its exceptions have no common class that is public
            raise DeviceError(
                f"{self._exe.device.spec}: ONNX Runtime failed to run {self._exe.graph.name!r}: {error}"
            ) from error
        if profile is not None:
            profile.spans.append(Span(self._exe.graph.name, "onnx", "", start, time.perf_counter() - start))
        for name, tensors in self._states.items():
            tensors.update((part, made[f"present.{name}.{part}"]) for part in tensors)
        self.outputs = {name: made[name] for name in self._exe.graph.outputs}
        return Done()
