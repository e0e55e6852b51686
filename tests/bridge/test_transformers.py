"""Whole models of transformers: the same logits and texts with operations of a platform inside."""

import pytest
import torch

pytest.importorskip("transformers")

import transformers

from hotshoe_bridge.operations import Operations
from hotshoe_bridge.transformers import install

COMMON = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
MODELS = {
    "Llama": {},
    "Mistral": {"sliding_window": 6},
    "Gemma2": {"head_dim": 8, "sliding_window": 6},
}


def model_of(name: str, **more):
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**COMMON, **more)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


@pytest.mark.parametrize("name", MODELS)
def test_models_compute_the_same(name: str) -> None:
    model = model_of(name, **MODELS[name])
    ids = torch.randint(0, COMMON["vocab_size"], (2, 12))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    write = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    with torch.inference_mode():
        want, text = model(ids, attention_mask=mask).logits, model.generate(ids, **write)
        found = install(model, Operations("cpu"))
        got = model(ids, attention_mask=mask).logits
        assert torch.allclose(got[mask.bool()], want[mask.bool()], atol=1e-4)
        assert torch.equal(model.generate(ids, **write), text)
    kinds = {who.partition("/")[0] for who in found.served.values() if "/" in who}
    assert kinds == {"linear", "gated_mlp", "rms_norm"}
    assert "attention" in found.served
    assert list(found.left) == ["model.embed_tokens"]


def test_attention_that_is_not_causal_is_refused(operations) -> None:
    model = model_of("Llama")
    install(model, operations)
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    with torch.inference_mode(), pytest.raises(ValueError, match="no causal attention"):
        model(torch.zeros(1, 4, dtype=torch.long))
