"""Bringing weights to a device as planes, neighbouring rows of one scheme in one piece, as stacks are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch

from xinheng.core.errors import OutOfMemory
from xinheng.core.hal import WeightPart, WeightSource, converted

from .handles import TorchWeight
from .plane_part import PlanePart, Upload, plane_part

if TYPE_CHECKING:
    from .device import TorchDevice


def prepared(device: TorchDevice, source: WeightSource) -> TorchWeight:
    """A weight in the memory of a device.

    Raises:
        OutOfMemory: there is no room for it.
        DeviceError: a value does not fit into the dtypes of the device.
    """
    held, how = converted(source, device.capabilities.dtypes, device.spec)
    runs = [list(run) for _, run in groupby(held.parts, key=lambda part: part.scheme)]
    try:
        parts = tuple(_joined(run, held.shape[-1], device.upload) for run in runs)
    except (torch.OutOfMemoryError, OutOfMemory) as error:
        raise device.explained(error, f"weight {source.name!r}", source.nbytes) from error
    planes = any(not part.dense for part in parts)
    return TorchWeight(held.shape, parts, how or ("planes of codes and scales" if planes else "as stored"))


def _joined(run: Sequence[WeightPart], columns: int, upload: Upload) -> PlanePart:
    """Parts of one scheme as one; besides the result there is never more than one of them on the device."""
    piece = plane_part(run[0], columns, upload)
    if len(run) == 1:
        return piece
    rows, first, at = sum(part.rows for part in run), piece, 0
    tensors = {f.name: x for f in fields(piece) if isinstance(x := getattr(piece, f.name), torch.Tensor)}
    whole: dict[str, Any] = {name: x.new_empty((rows, *x.shape[1:])) for name, x in tensors.items()}
    for part in run:
        piece = first if part is run[0] else plane_part(part, columns, upload)
        for name, tensor in whole.items():
            tensor[at : at + part.rows] = getattr(piece, name)
        at += part.rows
    return replace(first, rows=rows, **whole)
