"""Scales that are no numbers are refused, whatever the type."""

import numpy as np
import pytest
import torch
from tests.plugins.models.gguf.test_blocks import SCALES, draw

from hotshoe.errors import CheckpointError
from hotshoe_models.gguf.blocks import PARTS, dequantize


@pytest.mark.parametrize("kind", PARTS)
def test_scales_that_are_no_numbers_are_refused(kind: str) -> None:
    data = draw(kind)
    others = {"MXFP4": (0, b"\xff"), "NVFP4": (3, b"\x7f"), "IQ1_M": (52, b"\x00\xe0\x00\x70")}
    at, broken = others[kind] if kind in others else (SCALES[kind][-1], b"\x00\x7e")
    data[5, at : at + len(broken)] = np.frombuffer(broken, np.uint8)
    with pytest.raises(CheckpointError, match=r"^blk\.0 has scales that are NaN"):
        dequantize(kind, torch.from_numpy(data), name="blk.0")
