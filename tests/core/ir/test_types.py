"""Types print what they are, and weights say which rows are coded how."""

from __future__ import annotations

import pytest

from xinheng.core.errors import GraphError
from xinheng.core.ir import TensorType, WeightType, paged_latent, sequence_state, sym
from xinheng.core.ir.dtype import float16, float32
from xinheng.core.ir.types import parse_parts


def test_text() -> None:
    assert str(TensorType(float32, (sym("n") + 1, 4))) == "float32[n + 1, 4]"
    assert str(TensorType(float32, ())) == "float32[]"
    assert TensorType(float32, (2, 3)).rank == 2
    assert str(WeightType((768, 256), "q4_k:576+q6_k:192")) == "weight<q4_k:576+q6_k:192>[768, 256]"
    assert str(paged_latent(512, 64, "bfloat16")) == "state<paged_latent dim=512 rope_dim=64 scheme=bfloat16>"
    assert str(sequence_state((4, 5), float16)) == "state<sequence_state shape=[4,5] dtype=float16>"


def test_parts() -> None:
    assert WeightType((8, 32), "q8_0").parts == (("q8_0", 8),)
    assert WeightType((8, 256), "q4_k:6+q6_k:2").parts == (("q4_k", 6), ("q6_k", 2))
    assert parse_parts("q8_0:8", 8) == (("q8_0", 8),)
    with pytest.raises(GraphError, match="covers 7 rows, the weight has 8"):
        _ = WeightType((8, 256), "q4_k:6+q6_k:1").parts
    for text in ("q4_k+q6_k", "q4_k:a+q6_k:2", "q4_k:1:2"):
        with pytest.raises(GraphError, match="is malformed; write 'name' or 'name:rows\\+name:rows'"):
            parse_parts(text, 8)
