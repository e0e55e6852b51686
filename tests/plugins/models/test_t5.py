"""T5's encoder: what is refused. Vectors are compared in `test_encoder`."""

import pytest
from tests.plugins.models.test_bert import OPTIONS
from tests.plugins.models.test_encoder import made

from hotshoe import LLM
from hotshoe.errors import CheckpointError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"feed_forward_proj": "gated-relu"}, "knows only relu, gated-gelu, gated-silu"),
        ({"relative_attention_num_buckets": 30}, "served are multiples of 4"),
        ({"relative_attention_max_distance": 8}, "32 buckets for distances of up to 8"),
    ],
)
def test_refusals(tmp_path, values, message) -> None:
    made(tmp_path, "T5Encoder")
    with pytest.raises(CheckpointError, match=message):
        LLM(str(tmp_path), hf_overrides=values, **OPTIONS)
