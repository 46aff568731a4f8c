"""What a model builder sees of a checkpoint, and the one function that opens a file or folder of any format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from xinheng.core.hal.weight import WeightSource

from .file_map import FileMap, malformed
from .gguf import MAGIC, open_gguf
from .safetensors import open_safetensors, open_safetensors_folder


class Checkpoint(Protocol):
    """The tensors and settings of a model on disk, under Hugging Face names; nothing is read before it is asked for."""

    @property
    def path(self) -> Path: ...

    @property
    def format(self) -> str:
        """ "gguf" or "safetensors"."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The key-value pairs of a GGUF file (arrays as lists), or the content of config.json."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        ...

    def names(self) -> tuple[str, ...]: ...

    def __contains__(self, name: object) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape, slowest dimension first; ModelError if there is no such tensor."""
        ...

    def source(self, name: str) -> WeightSource:
        """A matrix as a lazy view of the file; ModelError if there is no such tensor or it is no matrix."""
        ...

    def array(self, name: str, dtype: Any = np.float32) -> NDArray[Any]:
        """A tensor of any rank and scheme as an array; ModelError if there is no such tensor."""
        ...


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open a GGUF file, a folder with config.json and *.safetensors, or one .safetensors file next to a config.json.

    The content decides, not the name. Of a split model any part, or its folder, may be given.

    Raises:
        FormatError: nothing is there, it is none of these, or a file is damaged; the message names file and byte.
    """
    path = Path(path)
    if path.is_dir():
        return open_safetensors_folder(path)
    if not path.is_file():
        raise malformed(path, "checkpoint", "there is no such file or folder; check the path")
    start = FileMap.open(path).data[:9]
    if start[:4] == MAGIC:
        return open_gguf(path)
    if start[8:9] == b"{":
        return open_safetensors(path)
    raise malformed(
        path, "first bytes", f"{start[:4]!r} is neither the GGUF magic nor a safetensors header; give another file", 0
    )
