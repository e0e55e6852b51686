"""Layer norms: which families have them, where they stand, and how many weights there are."""

import math

import pytest

#: Parameters of the published models that the families' defaults describe.
PUBLISHED = {
    "BioGpt": 346_763_264,
    "Falcon": 6_921_720_704,
    "GPT2": 124_439_808,
    "GPTNeo": 1_315_575_808,
    "GPTNeoX": 20_554_567_680,
    "OPT": 125_239_296,
    "Phi": 1_418_270_720,
    "StableLm": 2_795_443_200,
    "Starcoder2": 3_030_371_328,
}


def shapes(ctx) -> dict[str, tuple[int, ...]]:
    return {name: weight.shape for name, weight in ctx.weights.expected.items()}


@pytest.mark.parametrize(("family", "count"), PUBLISHED.items())
def test_published_parameters(build_family, family, count) -> None:
    found = shapes(build_family(family, sized=False))
    assert sum(math.prod(shape) for shape in found.values()) == count


@pytest.mark.parametrize("family", [*PUBLISHED, "Cohere", "Cohere2"])
def test_all_norms_are_layer_norms(build_family, family) -> None:
    specs = [s for slot, s in build_family(family).selector.decisions if slot.endswith("norm")]
    assert specs and {type(spec).__name__ for spec in specs} == {"LayerNormSpec"}
    assert {spec.bias for spec in specs} == {not family.startswith("Cohere")}


@pytest.mark.parametrize(
    ("family", "values", "norms"),
    [
        ("Cohere", {}, {"input_layernorm"}),
        ("StableLm", {"use_parallel_residual": True}, {"input_layernorm"}),
        ("StableLm", {}, {"input_layernorm", "post_attention_layernorm"}),
        ("GPTNeoX", {}, {"input_layernorm", "post_attention_layernorm"}),
        ("Falcon", {}, {"input_layernorm"}),
        ("Falcon", {"new_decoder_architecture": True}, {"ln_attn", "ln_mlp"}),
        ("Falcon", {"parallel_attn": False}, {"input_layernorm", "post_attention_layernorm"}),
    ],
)
def test_where_norms_stand(build_family, family, values, norms) -> None:
    names = [n.split(".") for n in shapes(build_family(family, **values)) if ".1." in n]
    found = {name[-2] for name in names if "norm" in name[-2] or name[-2].startswith("ln_")}
    assert found == norms


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("GPT2", {"h.1.ln_1.weight": "transformer.h.1.ln_1.weight", "wte.weight": None}),
        ("OPT", {"decoder.layers.0.fc1.bias": "model.decoder.layers.0.fc1.bias"}),
        ("GPTNeoX", {"layers.0.attention.dense.bias": "gpt_neox.layers.0.attention.dense.bias"}),
        ("Falcon", {"h.0.mlp.dense_4h_to_h.weight": None, "ln_f.bias": "transformer.ln_f.bias"}),
    ],
)
def test_checkpoints_without_an_output_matrix_lack_a_prefix(build_family, family, names) -> None:
    weights = build_family(family).weights
    for bare, full in names.items():
        known = weights.known_as(bare)
        assert known in weights.expected and known == (full or f"transformer.{bare}")
        assert weights.known_as(known) == known
