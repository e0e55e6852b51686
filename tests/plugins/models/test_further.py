"""Layers that predict further tokens: which tensors they want where, in each published layout."""

from pathlib import Path

import pytest

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext
from hotshoe.lazy import resolve_lazy
from hotshoe.models import ModelConfig
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector
from hotshoe_models.plugin import ARCHITECTURES

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
BEHIND = "model.layers.2."
#: Values beside `SIZES`, the layer's prefix, and the matrix that only it has.
LAYOUTS = {
    "MiMoForCausalLM": ({}, "model.mtp_layers.0.", "input_proj"),
    "Glm4MoeForCausalLM": ({"first_k_dense_replace": 1}, BEHIND, "eh_proj"),
    "Glm4MoeLiteForCausalLM": (LATENT, BEHIND, "eh_proj"),
    "DeepseekV3ForCausalLM": ({**LATENT, "first_k_dense_replace": 1}, BEHIND, "eh_proj"),
}


def build(name: str, further: int, number: int = 1):
    values = {**SIZES, **LAYOUTS.get(name, ({},))[0], "num_nextn_predict_layers": number}
    config = ModelConfig(Path("model"), name, values, "float32", 16, ())
    selector = Selector(SLOTS, [], FACTS)
    ctx = BuildContext(selector, "float32", "float32", 4, 16, further=further)
    return resolve_lazy(ARCHITECTURES[name])(config, ctx), ctx


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layer_is_like_the_last_one_with_a_matrix_in_front(name: str) -> None:
    _, prefix, join = LAYOUTS[name]
    model, ctx = build(name, further=True)
    _, plain = build(name, further=False)
    own = {
        n.removeprefix(prefix): w.shape
        for n, w in ctx.weights.expected.items()
        if n not in plain.weights.expected
    }
    last = {
        n.removeprefix("model.layers.1."): w.shape
        for n, w in plain.weights.expected.items()
        if n.startswith("model.layers.1.")
    }
    assert own.pop(f"{join}.weight") == (64, 128)
    norms = {n for n in own if n not in last}
    assert len(norms) == 3 and all(own[n] == (64,) for n in norms)
    assert {n: own[n] for n in last} == last
    assert model.draft_head.cache_layers == ctx.cache_layers[2:]
    assert len(plain.cache_layers) == 2
    for copy in ("embed_tokens.weight", "shared_head.head.weight"):
        assert not ctx.weights.wants(f"{prefix}{copy}")


@pytest.mark.parametrize("name", LAYOUTS)
def test_there_is_a_head_where_the_file_has_one_and_it_is_wanted(name: str) -> None:
    assert build(name, further=False)[0].draft_head is None
    assert build(name, further=True, number=0)[0].draft_head is None
    model, ctx = build(name, further=True, number=2)
    assert len(model.draft_head.cache_layers) == 1 and not model.draft_head.following
    assert len(ctx.cache_layers) == 3


@pytest.mark.parametrize("name", [*LAYOUTS, "Step3p5ForCausalLM", "MiMoV2FlashForCausalLM"])
def test_each_of_several_layers_is_one_of_its_own(name: str) -> None:
    prefixes = {"Step3p5ForCausalLM": BEHIND, "MiMoV2FlashForCausalLM": "model.mtp.layers.0."}
    prefix = prefixes.get(name) or LAYOUTS[name][1]
    model, ctx = build(name, further=2, number=3)
    first, second = model.draft_head, *model.draft_head.following
    assert [*first.cache_layers, *second.cache_layers] == ctx.cache_layers[2:]
    numbers = [int(part) for part in prefix.split(".") if part.isdecimal()]
    behind = prefix.replace(str(numbers[0]), str(numbers[0] + 1))
    own, other = (
        {n.removeprefix(start): w.shape for n, w in ctx.weights.expected.items() if start in n}
        for start in (prefix, behind)
    )
    assert own == other and len(own) > 8


def test_a_form_that_no_published_code_computes_is_refused_where_it_is_wanted() -> None:
    assert build("MiniMaxM2ForCausalLM", further=False)[0].draft_head is None
    with pytest.raises(ConfigError, match=r"method mtp .*num_mtp_modules.*use another method"):
        build("MiniMaxM2ForCausalLM", further=True)
