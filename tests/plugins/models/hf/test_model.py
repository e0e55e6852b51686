"""The tree is built without memory for weights; the rest of the model agrees with transformers in
`tests/plugins/models/test_logits.py` and `test_end_to_end.py`."""

import torch

from hotshoe_models.hf import build


def test_building_takes_no_memory_for_weights(described, context) -> None:
    """All of them would take 256 GB."""
    ctx = context()
    sizes = {"hidden_size": 1 << 13, "intermediate_size": 1 << 15, "num_hidden_layers": 60}
    sizes["head_dim"] = 1 << 11
    build(described("HeliumForCausalLM", **sizes), ctx)
    shape = ctx.weights.expected["model.layers.59.mlp.up_proj.weight"].shape
    assert shape == (1 << 15, 1 << 13)


def test_other_modules_are_left_alone(described, context) -> None:
    build(described("HeliumForCausalLM"), context())
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu"


def test_prompt_embeddings_are_scaled_as_those_of_tokens(described, context) -> None:
    model = build(described("Gemma2ForCausalLM"), context())
    rows = torch.randn(3, 32)
    torch.testing.assert_close(model.scale_embeddings(rows), rows * 32**0.5)
    plain = build(described("HeliumForCausalLM"), context())
    torch.testing.assert_close(plain.scale_embeddings(rows), rows)
