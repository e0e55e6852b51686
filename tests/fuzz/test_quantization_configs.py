"""Whatever config.json says of quantization, layers are planned, or an error names the field."""

import copy
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.mutations import changed_json, places
from tests.plugins.quantization.test_checkpoints import (
    EXACT,
    NEAR,
    auto_round,
    compressed,
    quark,
    quark_spec,
    torchao,
    weights,
)

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext, Linear, Matrix
from hotshoe.lazy import resolve_lazy
from hotshoe.models import ModelConfig
from hotshoe.models.quantization import stored_quantization
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector
from hotshoe_quantization.plugin import FORMATS

SOON_S = 10.0
KV = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
BY_NAME = {"module_fqn_to_config": {"_default": None, "re:.*down_proj": None}}
#: What the checkpoints of other tests do not have, or have for experts alone.
OTHERS = [
    {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    {"quant_method": "mlx", "bits": 4, "group_size": 32, "mode": "affine", "lm_head": False}
    | {"model.layers.0.down_proj": {"bits": 8, "group_size": 64}},
    {"quant_method": "mxfp8", "weight_block_size": [1, 32], "ignored_layers": ["lm_head"]},
    {"quant_method": "w4afp8", "group_size": 32, "ignored_layers": ["lm_head"]},
    {"quant_method": "fp8", "expert_dtype": "fp4", "weight_block_size": [32, 32]}
    | {"fp8_format": "e4m3", "modules_to_not_convert": ["lm_head"]},
    {"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "modules_to_not_convert": ["x"]},
    {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
    | {"use_rms_norm": False, "modules_to_not_convert": ["lm_head"]},
    {"quant_method": "modelopt", "quant_algo": "MXFP8", "kv_cache_quant_algo": "FP8"}
    | {"config_groups": {"a": {"weights": {"group_size": 32}}}, "kv_cache_scheme": KV},
    torchao("FqnTo", {}, **BY_NAME),
    auto_round("auto_gptq", rotation_config=None, to_quant_block_names=[["model.layers"]]),
    compressed("int-quantized", weights(8, "int", "channel", None), kv_cache_scheme=KV)
    | {"transform_config": {}, "sparsity_config": {"format": "dense"}},
    quark(
        quark_spec("int8", "per_channel"),
        layer_quant_config={"*v_proj": {"output_tensors": quark_spec("fp8_e4m3", "per_tensor")}},
        kv_cache_quant_config={"*down_proj": {"output_tensors": {"dtype": "int8"}}},
        export={"kv_cache_group": ["*v_proj"], "weight_format": "real_quantized"},
        algo_config=[{"name": "smoothquant"}],
        layer_type_quant_config={},
    ),
]
SEEDS = [written.config for written in (EXACT | NEAR).values()] + OTHERS
SIZE = 64
#: Matrices that are multiplied together, as a checkpoint calls them.
LAYERS = [
    ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"],
    ["model.layers.1.mlp.down_proj"],
    ["model.layers.2.mlp.experts.0.up_proj"],
    ["lm_head"],
]
#: A word of zero points that symmetric numbers of four bits have in GPTQ's first version.
MIDDLES = 0x77777777
FACTS = DeviceFacts("plain", "cpu", "", "", 1 << 30, 1)


def keys(value: Any) -> Iterator[str]:
    """Yield all names in a JSON value."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


#: All fields that some format reads.
FIELDS = frozenset(name for seed in SEEDS for name in keys(seed))


def plan(config: object) -> int:
    """Read a configuration, then build, load and call its layers.

    Returns:
        How many layers there are.
    """
    with tempfile.TemporaryDirectory() as folder:
        values = {"architectures": ["LlamaForCausalLM"], "quantization_config": config}
        (Path(folder) / "config.json").write_text(json.dumps(values))
        found = stored_quantization(ModelConfig.load(Path(folder)))
    if found is None or found["quant_method"] not in FORMATS:
        return 0
    stored = resolve_lazy(FORMATS[found["quant_method"]])(found)
    for names in LAYERS:
        ctx = BuildContext(Selector(SLOTS, [], FACTS), "float32", "float32", 4, 16, format=stored)
        layer = Linear(ctx, Matrix(ctx, [(name, SIZE) for name in names], SIZE))
        wanted = ctx.weights.expected
        numbers = sum(math.prod(one.shape) for one in wanted.values())
        assert numbers <= 4 * len(names) * SIZE * SIZE, "scales are more than their matrix"
        for name, one in wanted.items():
            dtype = min(one.dtypes, key=str)
            filler = MIDDLES if dtype == torch.int32 else 1
            ctx.weights.feed(name, torch.full(one.shape, filler).to(dtype))
        ctx.weights.check_complete()
        y = layer(torch.ones(2, SIZE))
        assert y.shape == (2, len(names) * SIZE) and y.isfinite().all()
    return len(LAYERS)


@pytest.mark.parametrize("method", FORMATS)
def test_seeds_of_every_format(method: str) -> None:
    assert any(seed["quant_method"] == method for seed in SEEDS)


@st.composite
def retyped(draw: st.DrawFn, seed: Any) -> Any:
    """Give one value another type, or another size, and leave it much the same."""
    value = copy.deepcopy(seed)
    *path, last = draw(st.sampled_from(places(value)))
    parent = value
    for key in path:
        parent = parent[key]
    old = parent[last]
    choices = [str(old), [old], {str(last): old}, [], [old, old]]
    if isinstance(old, str):
        choices += [old.upper(), f"re:{old}", f"re:({old}", "*", ""]
    if isinstance(old, int):
        choices += [float(old), bool(old), -old, old + 1, old * 2, old * 3, old * SIZE]
    parent[last] = draw(st.sampled_from(choices))
    return value


def contradictory() -> st.SearchStrategy[dict[str, Any]]:
    """Make a configuration of one format with some fields of another."""

    def mix(parts: tuple[dict[str, Any], dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        base, other = parts
        names = st.sets(st.sampled_from(sorted(other)), min_size=1)
        return names.map(lambda chosen: base | {name: other[name] for name in sorted(chosen)})

    seed = st.sampled_from(SEEDS)
    return st.tuples(seed, seed).flatmap(mix)


def configurations() -> st.SearchStrategy[Any]:
    """Make broken configurations of all formats."""
    seeds = st.sampled_from(SEEDS)
    return st.one_of(seeds.flatmap(changed_json), seeds.flatmap(retyped), contradictory())


@given(configurations())
def test_configurations(config: dict[str, Any]) -> None:
    begin = time.thread_time()
    try:
        plan(config)
    except CheckpointError as error:
        said = str(error)
        assert any(name in said for name in FIELDS) or "layers." in said, said
    assert time.thread_time() - begin < SOON_S
