"""What config.json of EAGLE-3 heads says: the layer's family, norms, the layers that it reads."""

from pathlib import Path

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.models import ModelConfig
from hotshoe_models.eagle_forms import TAPPED, chosen_layers, layer_family, merged


def config(architecture: str = "LlamaForCausalLMEagle3", **values: object) -> ModelConfig:
    return ModelConfig(Path("head"), architecture, values, "float32", 16, ())


def test_layers_are_counted_from_the_front_at_the_top_and_from_behind_in_eagle_config() -> None:
    assert chosen_layers(config(), 36) == [2, 18, 33]
    assert chosen_layers(config(**{TAPPED: [2, 18, 33]}), 36) == [2, 18, 33]
    assert chosen_layers(config(eagle_config={TAPPED: [1, 17, 32]}), 36) == [2, 18, 33]
    both = config(**{TAPPED: [4, 5]}, eagle_config={TAPPED: [1, 17, 32]})
    assert chosen_layers(both, 36) == [4, 5]
    assert chosen_layers(config(eagle_config={TAPPED: []}), 36) == [2, 18, 33]


@pytest.mark.parametrize("layers", ["2", [2, "3"], [35], [True]])
def test_layers_that_are_none_are_named(layers: object) -> None:
    with pytest.raises(CheckpointError, match=rf"{TAPPED} must be a rising list"):
        chosen_layers(config(eagle_config={TAPPED: layers}), 36)


@pytest.mark.parametrize(
    ("architecture", "values", "family"),
    [
        ("LlamaForCausalLMEagle3", {"model_type": "qwen2"}, "llama"),
        ("Eagle3Qwen3ForCausalLM", {}, "qwen3"),
        ("Eagle3Speculator", {"transformer_layer_config": {"model_type": "qwen3"}}, "qwen3"),
        ("Eagle3Speculator", {"transformer_layer_config": {"model_type": "llama"}}, "llama"),
    ],
)
def test_the_layer_has_a_family(architecture: str, values: dict[str, object], family: str) -> None:
    assert layer_family(config(architecture, **values)) == family


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        ("DFlashDraftModel", {}, "names DFlashDraftModel"),
        ("PEagleSpeculator", {"speculators_model_type": "peagle"}, "type is 'peagle'"),
        ("Eagle3Speculator", {"transformer_layer_config": {"model_type": "opt"}}, "'opt'"),
        ("LlamaForCausalLMEagle3", {"eagle_config": {"use_mtp_layernorm": True}}, "use_mtp"),
        ("LlamaForCausalLMEagle3", {"use_last_layernorm": False}, "use_last_layernorm is False"),
    ],
)
def test_what_no_head_has_is_named(
    architecture: str, values: dict[str, object], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        layer_family(config(architecture, **values))


def test_values_of_the_layer_and_norms_come_to_the_top() -> None:
    given = config(
        transformer_layer_config={"head_dim": 16, "fc_norm": False},
        eagle_config={"norm_output": True, "fc_norm": True, "use_aux_hidden_state": True},
        head_dim=32,
    )
    found = merged(given)
    assert (found.get("head_dim"), found.get("fc_norm"), found.get("norm_output")) == (
        32,
        True,
        True,
    )
