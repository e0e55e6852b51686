"""Rotations against transformers' own functions, and what must hold of each by its definition."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hotshoe.errors import CheckpointError, MemoryLimitError
from hotshoe.layers.rotary import VARIANTS, Rotary, Rotation, learned, rotary_table

TRAINED = 4096
DIM = 64


def factors(low, count=DIM // 2):
    return [random.uniform(low, 2 * low) for _ in range(count)]


CASES = {
    "linear": {"factor": 3.5},
    "dynamic": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "llama3-step": {
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 1.0,
        "original_max_position_embeddings": 1024,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn-given-attention": {
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.3,
    },
    "yarn-mscale": {
        "factor": 40.0,
        "original_max_position_embeddings": 1024,
        "mscale": 0.7,
        "mscale_all_dim": 1.1,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
    "longrope": {
        "original_max_position_embeddings": 1024,
        "short_factor": factors(1.0),
        "long_factor": factors(5.0),
    },
    "longrope-factor": {
        "original_max_position_embeddings": 1024,
        "short_factor": factors(1.0),
        "long_factor": factors(5.0),
        "factor": 16.0,
    },
    "proportional": {"partial_rotary_factor": 0.5, "factor": 3.0},
    "proportional-whole": {},
    "longrope-attention": {
        "original_max_position_embeddings": 1024,
        "short_factor": factors(1.0),
        "long_factor": factors(5.0),
        "attention_factor": 1.19,
    },
}


def values(kind, **more):
    rope = {"rope_type": kind.split("-")[0], "rope_theta": 50_000.0, **more}
    return {"max_position_embeddings": TRAINED, "rope_parameters": rope}


def transformers_rotation(config, length=None):
    """Return what transformers computes: inverse frequencies and attention factor."""
    kind = config.rope_parameters["rope_type"]
    return ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=length)


def llama(given):
    return LlamaConfig(hidden_size=4 * DIM, num_attention_heads=4, **given)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("max_model_len", [512, 1024, 1025, 4096, 6000, 100_000])
def test_agrees_with_transformers(case, max_model_len):
    given_values = values(case, **CASES[case])
    rotation = Rotation.from_config(given_values, DIM, max_model_len)
    inv_freq, attention = transformers_rotation(llama(given_values), max_model_len)
    ours = torch.tensor(rotation.inv_freq, dtype=torch.float64)
    torch.testing.assert_close(ours, inv_freq.double(), rtol=2e-6, atol=0)
    assert rotation.attention_factor == pytest.approx(attention, rel=1e-12)
    assert rotation.rotary_dim == DIM


def test_default_is_the_formula():
    rotation = Rotation.from_config(values("default"), DIM, 99)
    expected = [50_000.0 ** (-2 * i / DIM) for i in range(DIM // 2)]
    assert rotation.inv_freq == pytest.approx(expected, rel=1e-14)
    assert rotation.attention_factor == 1.0


def test_every_variant_is_tested():
    assert set(VARIANTS) == {case.split("-")[0] for case in CASES} | {"default"}


def test_older_spellings_mean_the_same():
    rope = {"factor": 4.0, "original_max_position_embeddings": 1024}
    new = Rotation.from_config(values("yarn", **rope), DIM, TRAINED)
    for spelling in ("type", "rope_type"):
        older = {
            "max_position_embeddings": TRAINED,
            "rope_theta": 50_000.0,
            "rope_scaling": {spelling: "yarn", **rope},
        }
        assert Rotation.from_config(older, DIM, TRAINED) == new
    longrope = Rotation.from_config(values("longrope", **CASES["longrope"]), DIM, TRAINED)
    older["rope_scaling"] = {"type": "su", **CASES["longrope"]}
    assert Rotation.from_config(older, DIM, TRAINED) == longrope


def test_null_scaling_is_no_scaling():
    older = {"max_position_embeddings": 64, "rope_theta": 100.0, "rope_scaling": None}
    assert Rotation.from_config(older, DIM, 64).inv_freq[1] == 100.0 ** (-2 / DIM)


def test_the_architectures_base_serves_when_none_is_given():
    bare = {"max_position_embeddings": 64}
    given_base = Rotation.from_config({**bare, "rope_theta": 7.0}, DIM, 64, default_theta=300.0)
    assert given_base.inv_freq[-1] == pytest.approx(7.0 ** -(1 - 2 / DIM))
    rotation = Rotation.from_config(bare, DIM, 64, default_theta=300.0)
    assert rotation.inv_freq[-1] == pytest.approx(300.0 ** -(1 - 2 / DIM))


def test_layer_types_have_their_own():
    both = {
        "max_position_embeddings": 64,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 9.0},
        },
    }
    full = Rotation.from_config(both, DIM, 64, layer_type="full_attention")
    sliding = Rotation.from_config(both, DIM, 64, layer_type="sliding_attention")
    assert full.inv_freq[:2] == pytest.approx((0.5, 0.5 * 100.0 ** (-2 / DIM)))
    assert sliding.inv_freq[:2] == pytest.approx((1.0, 9.0 ** (-2 / DIM)))
    with pytest.raises(CheckpointError, match="chunked"):
        Rotation.from_config(both, DIM, 64, layer_type="chunked")


def test_partial_rotation_agrees_with_phi3():
    rope = {**CASES["longrope"], "rope_type": "longrope", "partial_rotary_factor": 0.75}
    for key in ("short_factor", "long_factor"):
        rope[key] = factors(2.0, DIM * 3 // 8)
    given_values = {
        "max_position_embeddings": TRAINED,
        "original_max_position_embeddings": 2048,
        "rope_parameters": rope,
    }
    config = Phi3Config(hidden_size=4 * DIM, num_attention_heads=4, **given_values)
    for length in (2048, 2049):
        rotation = Rotation.from_config(given_values, DIM, length)
        inv_freq, attention = transformers_rotation(config, length)
        assert rotation.rotary_dim == DIM * 3 // 4
        assert rotation.inv_freq == pytest.approx(inv_freq.tolist(), rel=2e-6)
        assert rotation.attention_factor == pytest.approx(attention, rel=1e-12)


def test_dynamic_is_unscaled_up_to_the_trained_length():
    plain = Rotation.from_config(values("default"), DIM, TRAINED)
    for length in (1, TRAINED):
        scaled = Rotation.from_config(values("dynamic", factor=4.0), DIM, length)
        assert scaled.inv_freq == pytest.approx(plain.inv_freq, rel=1e-14)
    longer = Rotation.from_config(values("dynamic", factor=4.0), DIM, TRAINED + 1)
    assert longer.inv_freq[-1] < plain.inv_freq[-1]


@given(
    st.sampled_from(["yarn", "llama3"]),
    st.floats(1.0, 64.0),
    st.integers(16, 100_000),
    st.sampled_from([32, 64, 80, 128]),
)
def test_interpolation_stays_between_its_ends(kind, factor, original, dim):
    rope = {"factor": factor, "original_max_position_embeddings": original}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled = Rotation.from_config(values(kind, **rope), dim, TRAINED)
    plain = Rotation.from_config(values("default"), dim, TRAINED)
    for ours, fast in zip(scaled.inv_freq, plain.inv_freq, strict=True):
        assert fast / factor * (1 - 1e-12) <= ours <= fast * (1 + 1e-12)
    assert list(scaled.inv_freq) == sorted(scaled.inv_freq, reverse=True)


BAD = [
    ({"rope_type": "helix"}, "rope_type 'helix'"),
    ({"rope_type": ["linear"]}, "rope_type"),
    ({"rope_type": "linear"}, "'factor'"),
    ({"rope_type": "linear", "factor": 0}, "factor.*0"),
    ({"rope_type": "linear", "factor": True}, "factor.*True"),
    ({"rope_type": "linear", "factor": float("inf")}, "factor.*inf"),
    ({"rope_type": "llama3", "factor": 2.0}, "'low_freq_factor'"),
    (
        {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 3.0},
        "high_freq_factor",
    ),
    ({"rope_type": "longrope", "short_factor": [1.0] * 32}, "long_factor.*None"),
    (
        {"rope_type": "longrope", "short_factor": ["a"] * 32, "long_factor": [1.0] * 32},
        "short_factor.*'a'",
    ),
    ({"rope_theta": "big"}, "rope_theta.*'big'"),
    ({"partial_rotary_factor": 1.5}, "partial_rotary_factor 1.5"),
    ({"partial_rotary_factor": 0.01}, "partial_rotary_factor 0.01"),
    (
        {"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 2 / DIM},
        "rope_type 'dynamic' cannot be computed .* 2 channels",
    ),
    ({"rope_theta": 10**400}, "rope_theta must be a positive number"),
    (
        {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1},
        "'yarn' cannot be computed for a rope_theta of 1,",
    ),
    (
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 32,
            "long_factor": [1.0] * 32,
            "original_max_position_embeddings": 1,
        },
        "'longrope' cannot be computed",
    ),
    (
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 32,
            "long_factor": [1.0] * 32,
            "original_max_position_embeddings": 0.5,
        },
        "'longrope' cannot be computed",
    ),
]


@pytest.mark.parametrize(("rope", "message"), BAD)
def test_errors_name_the_key(rope, message):
    given_values = {"max_position_embeddings": TRAINED, "rope_parameters": rope}
    with pytest.raises(CheckpointError, match=message):
        Rotation.from_config(given_values, DIM, TRAINED)


def test_a_missing_trained_length_is_named():
    with pytest.raises(CheckpointError, match="max_position_embeddings"):
        Rotation.from_config({}, DIM, TRAINED)


def test_equal_rotations_are_one_key():
    one, same = (Rotation.from_config(values("linear", factor=2.0), DIM, 64) for _ in range(2))
    other = Rotation.from_config(values("linear", factor=3.0), DIM, 64)
    assert len({one, same, other}) == 2


def test_table_is_rounded_once_from_float64():
    inv_freq = torch.rand(16, dtype=torch.float64)
    rotation = Rotation(tuple(inv_freq.tolist()), attention_factor=1.7)
    rotary = Rotary.build(rotation, 5000, "cpu", 2**30)
    assert rotary.table.shape == (5000, 32) and rotary.table.dtype == torch.float32
    for position in (0, 1, 2, 4999):
        for pair in range(16):
            angle = position * rotation.inv_freq[pair]
            cos, sin = rotary.table[position, [pair, 16 + pair]].tolist()
            assert cos == pytest.approx(1.7 * math.cos(angle), rel=1.2e-7, abs=1e-12)
            assert sin == pytest.approx(1.7 * math.sin(angle), rel=1.2e-7, abs=1e-12)
    assert torch.equal(rotary.table, rotary_table(inv_freq, 5000, 1.7))


def test_heads_of_odd_size_are_named():
    given_values = {"max_position_embeddings": TRAINED}
    with pytest.raises(CheckpointError, match="head_dim rotates 15 of 15 channels"):
        Rotation.from_config(given_values, 15, TRAINED)


def test_a_table_beyond_its_share_of_the_memory_is_refused_before_it_is_made():
    rotation = Rotation((1.0, 0.5))  # 16 bytes per position
    assert Rotary.build(rotation, 64, "cpu", 8 * 16 * 64).table.shape == (64, 4)
    with pytest.raises(MemoryLimitError, match=r"of 65 positions .* lower --max-model-len"):
        Rotary.build(rotation, 65, "cpu", 8 * 16 * 64)
    with pytest.raises(MemoryLimitError):
        Rotary.build(rotation, 2**50, "cpu", 2**34)


def test_rates_may_be_learned(ctx):
    """The table stays where it lies, as operations remember it."""
    rotation = Rotation((1.0, 0.5, 0.01), 1.3, learned="rates")
    rotary = Rotary.build(rotation, 40, "cpu", 2**30)
    table, plain = rotary.table, rotary.table.clone()
    assert learned(ctx, rotation, rotary) is rotary
    for _ in range(2):
        logs = torch.randn(3)
        ctx.weights.feed("rates", logs)
        rates = logs.double().exp() * torch.tensor(rotation.inv_freq, dtype=torch.float64)
        assert torch.equal(table, rotary_table(rates, 40, 1.3)) and not torch.equal(table, plain)
        ctx.weights.check_update(["rates"])
    (place,) = ctx.weights.where("rates")
    assert torch.equal(place.holder.state()["logs"], logs)
    ctx.weights.feed("rates", torch.zeros(3))
    assert torch.equal(table, plain)


def test_rates_that_are_not_learned_ask_for_nothing(ctx):
    rotation = Rotation((1.0, 0.5))
    learned(ctx, rotation, Rotary.build(rotation, 8, "cpu", 2**30))
    assert not ctx.weights.expected
