"""BioGPT: its norms and positions, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError, ConfigError


def test_norms_are_as_exact_whatever_files_say(build_family) -> None:
    found = build_family("BioGpt", layer_norm_eps=1e-3).selector.decisions
    assert {spec.eps for slot, spec in found if slot.endswith("norm")} == {1e-5}


def test_no_sequence_is_longer_than_there_are_positions(build_family) -> None:
    build_family("BioGpt", max_model_len=20, max_position_embeddings=20)
    with pytest.raises(ConfigError, match="max_model_len 21 exceeds the 20 positions"):
        build_family("BioGpt", max_model_len=21, max_position_embeddings=20)


BAD = [
    ({"hidden_act": "tanh"}, "hidden_act is 'tanh'"),
    ({"scale_embedding": 2}, "scale_embedding is 2.*true or false"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family("BioGpt", **values)
