"""Export of a Hugging Face causal model to ONNX by torch: `python -m xinheng.backends._torch.export FOLDER FILE`.

The exported model takes input_ids and position_ids, int64 [batch, seq] with symbolic sizes, and gives logits float32
[batch, seq, vocabulary]; it has no cache. A failure ends with exit status 1 and one sentence on standard error.
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

OPSET = 23
EXAMPLE = (2, 7)
"""Batch and length of the example that torch traces; it must not take sizes of one as constants."""


class Logits(torch.nn.Module):
    """A causal model as a function of ids and positions, without a cache."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return self.model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits


def export(folder: Path, file: Path) -> None:
    """Write the ONNX model of a folder; weights of more than 2 GiB go into a file beside it."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    limit = getattr(model.config, "max_position_embeddings", None) or 1 << 20
    sizes = {0: torch.export.Dim("batch", min=1, max=1024), 1: torch.export.Dim("seq", min=1, max=limit)}
    ids = torch.zeros(EXAMPLE, dtype=torch.int64)
    positions = torch.arange(EXAMPLE[1]).expand(EXAMPLE).contiguous()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            Logits(model).eval(),
            (ids, positions),
            dynamo=True,
            opset_version=OPSET,
            input_names=["input_ids", "position_ids"],
            output_names=["logits"],
            dynamic_shapes=(sizes, sizes),
            verbose=False,
        )
    assert program is not None
    program.save(str(file))


def main(arguments: list[str]) -> int:
    """Export, or say why not."""
    if len(arguments) != 2:
        print("usage: python -m xinheng.backends._torch.export FOLDER FILE", file=sys.stderr)
        return 2
    logging.disable(logging.WARNING)
    try:
        export(Path(arguments[0]), Path(arguments[1]))
    except Exception as error:  # whatever transformers or torch raise, the caller is told in one sentence
        print(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
