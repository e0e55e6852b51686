"""Models of Llama's shape: in what each of them differs, and what is refused."""

import pytest

from hotshoe.errors import CheckpointError


def decisions(ctx, name):
    return [spec for slot, spec in ctx.selector.decisions if slot == name]


def test_helium_rotates_pairs_and_has_no_bias_behind_attention(build_family) -> None:
    ctx = build_family("Helium", head_dim=16, attention_bias=True)
    assert all(spec.interleaved for spec in decisions(ctx, "rotary_and_cache"))
    biases = {name.split(".")[4] for name in ctx.weights.expected if name.endswith(".bias")}
    assert biases == {"q_proj", "k_proj", "v_proj"}


def test_the_first_of_four_layers_of_cwm_sees_everything(build_family) -> None:
    ctx = build_family("Cwm", head_dim=16, num_hidden_layers=6)
    assert [layer.spec.window for layer in ctx.cache_layers] == [None, *[8192] * 3, None, 8192]


@pytest.mark.parametrize(("key", "biased"), [("qkv_bias", "q_proj"), ("bias", "up_proj")])
def test_biases_of_internlm3_have_other_names(build_family, key, biased) -> None:
    ctx = build_family("InternLM3", head_dim=16, **{key: True})
    names = [name for name in ctx.weights.expected if name.endswith(".bias")]
    assert any(biased in name for name in names) and len(names) < 10


def test_jais2_norms_mean_and_variance(build_family) -> None:
    ctx = build_family("Jais2")
    assert {spec.eps for spec in decisions(ctx, "layer_norm")} == {1e-5}
    assert not any("gate" in name for name in ctx.weights.expected)


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("IQuestCoder", {"clip_qkv": 2.0}, "clip_qkv is 2.0.*without it"),
        ("IQuestCoder", {"use_sliding_window": True}, "use_sliding_window"),
        ("Cwm", {"sliding_window": None}, "sliding_window is None.*sliding_attention"),
        ("Jais2", {"hidden_act": "tanh"}, "hidden_act is 'tanh'.*relu2"),
    ],
)
def test_bad_values_are_named(build_family, family, values, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_family(family, **{"head_dim": 16, **values})
