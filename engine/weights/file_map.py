"""A read-only memory map of one checkpoint file, with bounds that are checked and errors that name the byte."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import FormatError


def malformed(path: Path, what: str, reason: str, offset: int | None = None) -> FormatError:
    """The error for `what` in file `path`, found at byte `offset`."""
    place = "" if offset is None else f" at byte {offset}"
    return FormatError(f"{path}: {what}{place}: {reason}")


@dataclass(frozen=True)
class FileMap:
    """A file mapped into memory; nothing is read before it is touched, and views stay valid as long as they live."""

    path: Path
    data: mmap.mmap = field(repr=False)
    size: int

    @staticmethod
    def open(path: Path) -> FileMap:
        """Map `path`.

        Raises:
            FormatError: there is no such file, it cannot be read, or it is empty.
        """
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise malformed(path, "file", f"cannot be opened ({error.strerror or error}); check the path") from error
        except ValueError:
            raise malformed(path, "file", "is empty; download it again", 0) from None
        return FileMap(path, data, len(data))

    def view(self, offset: int, count: int) -> NDArray[np.uint8]:
        """Bytes offset to offset + count, uint8 [count], read-only, not copied; the caller has checked the bounds."""
        if count == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(self.data, np.uint8, count, offset)

    def error(self, what: str, offset: int, reason: str) -> FormatError:
        """The error for `what` at byte `offset` of this file."""
        return malformed(self.path, what, reason, offset)
