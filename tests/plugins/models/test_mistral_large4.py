"""Mistral Large 4: sizes as transformers has them, which layers share what, both layouts of names,
bad values named."""

import math
import random

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.types.mesh import Axis

SIZES = {
    "num_hidden_layers": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "index_n_heads": 4,
    "index_head_dim": 16,
    "index_topk": 6,
}


@pytest.fixture
def build_text(build_family, monkeypatch):
    """Build the text part from bare values."""
    from tests.plugins.models import conftest

    monkeypatch.setitem(conftest.ARCHITECTURE, "MistralLarge4", "MistralLarge4TextModel")
    return lambda **values: build_family("MistralLarge4", **values)


def test_parameters_are_theirs(build_text):
    values = {
        "num_hidden_layers": 6,
        "n_routed_experts": 8,
        "kv_source_layers": [0, 0, 2, 3, 2, 5],
        "index_topk_freq": 2,
    }
    with torch.device("meta"):
        config = transformers.MistralLarge4TextConfig(**values)
        theirs = transformers.MistralLarge4TextModel(config)
    ours = build_text(sized=False, **values)
    counted = sum(math.prod(weight.shape) for weight in ours.weights.expected.values())
    assert counted == sum(p.numel() for p in theirs.parameters())


def test_layers_rotate_or_have_no_channels_that_would(build_text):
    ctx = build_text(**SIZES)
    found = [s.attention for slot, s in ctx.selector.decisions if slot == "sparse_mla_attention"]
    sizes = {(spec.nope_dim, spec.rope_dim, spec.row.channels) for spec in found}
    assert sizes == {(16, 8, 40), (24, 0, 32)}
    assert {spec.scale for spec in found} == {24**-0.5}
    chosen = [spec for slot, spec in ctx.selector.decisions if slot == "indexer"]
    assert {(spec.rope_dim, spec.head_dim) for spec in chosen} == {(8, 16), (0, 16)}
    still = build_text(**SIZES, no_rope_layers=[0] * 4)
    assert "model.rotary_emb.alpha" not in still.weights.expected
    assert not still.weights.wants("model.rotary_emb.alpha")


@pytest.mark.parametrize(
    ("values", "latents", "indexers"),
    [
        ({}, [0, 1, 2, 3], [0, 1, 2, 3]),
        ({"kv_source_layers": [0, 0, 0, 3]}, [0, 3], [0, 1, 2, 3]),
        ({"kv_source_layers": [0, 0, 2, 3], "index_topk_freq": 2}, [0, 2, 3], [0, 1, 3]),
        ({"kv_source_layers": [0, 1, 0, 1], "no_rope_layers": [1, 0] * 2}, [0, 1], [0, 1, 2, 3]),
    ],
    ids=str,
)
def test_layers_that_share_keep_nothing(build_text, values, latents, indexers):
    ctx = build_text(**SIZES, **values)
    names = ctx.weights.expected
    layers = [f"model.layers.{i}.self_attn." for i in range(4)]
    for part in ("kv_a_proj_with_mqa", "kv_a_layernorm"):
        assert [i for i in range(4) if f"{layers[i]}{part}.weight" in names] == latents
    assert all(f"{layer}kv_b_proj.weight" in names for layer in layers)
    assert [i for i in range(4) if f"{layers[i]}indexer.wk.weight" in names] == indexers
    kinds = [layer.cache_spec.kind for layer in ctx.cache_layers]
    assert (kinds.count("latent"), kinds.count("index")) == (len(latents), len(indexers))


def test_names_of_modules_are_read_as_published_ones(
    variants, checkpoints, stepper_class, tmp_path
):
    made = checkpoints.get(variants["large4"])
    made.model.save_pretrained(tmp_path, save_original_format=False)
    published, modules = (load_file(path / "model.safetensors") for path in (made.path, tmp_path))
    assert "lerope.alpha" in published and not published.keys() & modules.keys()
    draft = {"mtp_dspark.layers.0.attention.wq.weight": torch.ones(1)}
    save_file({**modules, **draft}, tmp_path / "model.safetensors", {"format": "pt"})
    text = [random.randrange(256) for _ in range(20)]
    steppers = [stepper_class(place, 64) for place in (made.path, tmp_path)]
    ours = [stepper.step({0: text})[0] for stepper in steppers]
    assert torch.equal(*ours)
    told = steppers[1].ctx.weights.notice()["unused weights"]
    assert "parts that see or hear" in told and "1 tensors of layers that predict" in told


def test_a_stage_without_the_latents_is_refused(variants, checkpoints, stepper_class):
    path = checkpoints.get(variants["large4"]).path
    with pytest.raises(ConfigError, match=r"layer 1 reads the cache of layer 0.*another stage"):
        stepper_class(path, 64, stage=Axis(1, 2), stage_layers=(1, 5))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kv_source_layers": [0, 0]}, "kv_source_layers.*each of 4 layers"),
        ({"kv_source_layers": 0}, "kv_source_layers is 0"),
        ({"kv_source_layers": [0, 2, 2, 3]}, "kv_source_layers.*layer 1 needs its own number"),
        ({"kv_source_layers": [0, 0, 1, 3]}, "kv_source_layers.*layer 2 needs its own number"),
        ({"kv_source_layers": [0, -1, 2, 3]}, "kv_source_layers.*layer 1"),
        ({"kv_source_layers": [0, True, 2, 3]}, "kv_source_layers.*layer 1"),
        ({"kv_source_layers": [0, 1, 2, 2]}, "kv_source_layers.*layer 3 can.*rotates as this one"),
        (
            {"kv_source_layers": [0, 1, 1, 0], "no_rope_layers": [1] * 4},
            "kv_source_layers.*layer 3 can read the latents alone of the last",
        ),
        ({"no_rope_layers": [1]}, "no_rope_layers.*each of 4 layers"),
        ({"indexer_types": ["shared"] + ["full"] * 3}, "indexer_types.*in its first layer"),
        ({"index_head_dim": 4}, "index_head_dim is 4.*rotates 8 channels"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types.*indexed_attention"),
        ({"final_logit_softcapping": 0}, "final_logit_softcapping"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
    ],
    ids=str,
)
def test_bad_values_are_named(build_text, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_text(**{**SIZES, **values})
