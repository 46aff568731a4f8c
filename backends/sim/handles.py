"""The buffers of simulated devices: opaque to everyone but the device they belong to, as those of real ones are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from xinheng.core.errors import DeviceError
from xinheng.core.ir.dtype import DType

if TYPE_CHECKING:
    from .device import SimDevice


class SimTensor:
    """A tensor of one device. It holds numbers once they have been computed, and an error if that failed."""

    def __init__(self, home: SimDevice, dtype: DType, array: NDArray[Any] | None = None) -> None:
        self.home, self.dtype = home, dtype
        self.error: DeviceError | None = None
        self._array = array

    @property
    def pending(self) -> bool:
        """Whether it has not been computed yet."""
        return self._array is None and self.error is None

    @property
    def array(self) -> NDArray[Any]:
        """The numbers themselves; DeviceError if they are not there yet, or never will be."""
        if self.error is not None:
            raise DeviceError(f"{self.home.spec}: {self.error}")
        if self._array is None:
            raise DeviceError(
                f"{self.home.spec}: a {self.dtype} tensor is read before the event of the run that computes it; wait "
                "for the event, or use download, which waits"
            )
        return self._array

    def put(self, array: NDArray[Any]) -> None:
        """Give a tensor that is still empty its numbers."""
        self._array = array

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        raise DeviceError(f"a buffer of {self.home.spec} is no numpy array; read it by download")


class SimWeight:
    """A prepared weight: its values, and one phrase on how they came to be."""

    def __init__(self, home: SimDevice, array: NDArray[Any], layout: str) -> None:
        self.home, self.array, self.layout = home, array, layout


class SimState:
    """A state of one device; `payload` is what its kernels read and change in place."""

    def __init__(self, home: SimDevice, payload: Any) -> None:
        self.home, self.payload = home, payload
