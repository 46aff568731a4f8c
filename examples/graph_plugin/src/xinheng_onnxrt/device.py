"""A device whose buffers are numpy arrays, and whose graphs are sessions of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from xinheng.core import Capabilities, Device, Kernel, KernelRegistry, MemoryStats, Refusal, dtype
from xinheng.core.errors import GraphError
from xinheng.core.hal.reference import host_memory
from xinheng.core.interop.bodies import state_tensors
from xinheng.core.interop.onnx_export import export_onnx
from xinheng.core.ir.dtype import cast_to
from xinheng.core.passes import alone

from .executable import OnnxExecutable

DTYPES = ("float32", "float16", "int64", "int32", "int8", "uint64", "uint32", "uint8", "bool")


class OnnxDevice(Device):
    """`onnxrt:0`. It has no kernels: `select` asks whether ONNX Runtime takes a node, `compile` gets whole graphs."""

    def __init__(self, threads: int | None) -> None:
        self.spec, self.name = "onnxrt:0", "ONNX Runtime on the processor"
        self.capabilities = Capabilities(frozenset(map(dtype, DTYPES)), block_sizes=(16,), unified_memory=True)
        self.kernels = KernelRegistry()
        self._threads = threads or 0
        self._answers: dict[str, str | None] = {}

    def session(self, graph: Any, parameters: Any = None) -> onnxruntime.InferenceSession:
        """A graph as ONNX Runtime runs it.

        Raises:
            GraphError: it cannot be exported.
            onnxruntime exceptions: it can, but ONNX Runtime has no implementation for these element types.
        """
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = self._threads, 4
        model = export_onnx(graph, parameters).SerializeToString()
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def select(self, node: Any, only: str | None = None) -> tuple[Kernel | None, list[Refusal]]:
        reason = self._refusal(node)
        return (Kernel(node.op.name, "onnx"), []) if reason is None else (None, [Refusal("onnx", reason)])

    def _refusal(self, node: Any) -> str | None:
        types = [str(v.type) if v is not None else None for v in (*node.operands, *node.results)]
        question = repr((node.op.name, types, dict(node.attributes)))
        if question not in self._answers:
            self._answers[question] = self._tried(node)
        return self._answers[question]

    def _tried(self, node: Any) -> str | None:
        tensors = [v.dtype for v in (*node.operands, *node.results) if v is not None and hasattr(v.type, "dtype")]
        strange = [kind.name for kind in tensors if kind not in self.capabilities.dtypes]
        if strange:
            return f"takes no {strange[0]}"
        try:
            self.session(alone(node))
        except GraphError as error:
            return str(error)
        except Exception as error:  # its exceptions have no common class that is public
            return f"ONNX Runtime refuses it: {str(error).splitlines()[0]}"
        return None

    def compile(self, graph: Any, placement: Any, bounds: Any) -> OnnxExecutable:
        return OnnxExecutable(graph, self, placement, bounds)

    def upload(self, array: Any, dtype: Any) -> Any:
        return np.ascontiguousarray(array if array.dtype == dtype.numpy else cast_to(array, dtype))

    def download(self, buffer: Any) -> Any:
        return buffer

    def prepare(self, source: Any, uses: Any) -> Any:
        return source.unpack(np.float32)

    def layout_of(self, buffer: Any) -> tuple[str, int]:
        return "expanded to float32", buffer.nbytes

    def allocate_state(self, type: Any, space: Any) -> dict[str, Any]:
        """The tensors of a state by name; a run replaces them by new ones."""
        lead = (space.blocks, space.block_size)
        made = {}
        for part, kind in state_tensors("state", type):
            made[part] = np.zeros((*lead[: kind.rank - len(known(kind))], *known(kind)), kind.dtype.numpy)
        return made

    def shape(self, buffer: Any) -> tuple[int, ...]:
        return tuple(buffer.shape)

    def memory(self) -> MemoryStats:
        return host_memory()


def known(kind: Any) -> tuple[int, ...]:
    """The sizes of a tensor type that are numbers."""
    return tuple(dim for dim in kind.shape if isinstance(dim, int))
