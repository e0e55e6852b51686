"""Inkling: values that cannot be."""

import pytest

from hotshoe.errors import CheckpointError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shared_expert_sink": False}, "shared_expert_sink"),
        ({"conv_kernel_size": 1}, "conv_kernel_size.*two tokens"),
        ({"local_layer_ids": ["1"]}, "local_layer_ids.*list of layer indices"),
        ({"swa_num_key_value_heads": 3, "swa_num_attention_heads": 4}, "swa_num_key_value_heads"),
    ],
)
def test_bad_values(values, message, build_family):
    with pytest.raises(CheckpointError, match=message):
        build_family("Inkling", **values)
