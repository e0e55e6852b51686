"""NVFP4 and MXFP4 whose checkpoints want x in 4-bit floats: which layers, and what kernels get."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
import torch
from tests.plugins.quantization.test_checkpoints import MX, compressed, quark, quark_spec, weights
from tests.plugins.quantization.writers import fp4
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext, Linear, Matrix, Mixture, MoE
from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    SLOTS,
    Candidate,
    LinearSpec,
    MoeSpec,
    QuantSpec,
    RouterSpec,
    Selector,
    accept_unless,
)
from hotshoe.slots.reference.linear import Linear as PlainLinear
from hotshoe.slots.reference.moe import Moe as PlainMoe
from hotshoe_quantization import auto_round as rounds
from hotshoe_quantization import compressed as compressed_tensors
from hotshoe_quantization import fp8
from hotshoe_quantization import quark as quarks
from hotshoe_quantization.stored import StoredFormat

FACTS = DeviceFacts("test", "cpu", "a test's device", "any", 1 << 30, 1)
LAYER = "model.layers.3.mlp.gate_proj"
LOCAL = {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": "local"}
NVFP4, MXFP4 = (QuantSpec("fp4_e2m1", "group", size) for size in (16, 32))


def modelopt(**more: object) -> StoredFormat:
    return fp8.read_modelopt({"quant_algo": "NVFP4", "ignore": ["lm_head"], **more})


def auto_round(**more: object) -> StoredFormat:
    return rounds.read({"packing_format": rounds.PACKED, "bits": 4, "group_size": 32, **more})


def by_compressed(kind: str, size: int, inputs: dict | None) -> StoredFormat:
    strategy = "tensor_group" if size == 16 else "group"
    return compressed_tensors.read(compressed(kind, weights(4, "float", strategy, size), inputs))


def by_quark(inputs: dict | None) -> StoredFormat:
    return quarks.read(quark(quark_spec("fp4", "per_group", **MX), inputs))


FORMS = {
    "modelopt": (modelopt, NVFP4, NVFP4),
    "modelopt, weights alone": (
        lambda: modelopt(quant_algo="W4A16_NVFP4"),
        NVFP4,
        None,
    ),
    "modelopt, x in eight bits": (
        lambda: modelopt(quant_algo="W4A8_NVFP4_FP8"),
        NVFP4,
        None,
    ),
    "modelopt, mxfp4": (lambda: modelopt(quant_algo="MXFP4"), MXFP4, MXFP4),
    "modelopt, mxfp4 and x in eight bits": (
        lambda: modelopt(quant_algo="W4A8_MXFP4_FP8"),
        MXFP4,
        None,
    ),
    "auto-round": (
        lambda: auto_round(data_type="nv_fp", group_size=16, act_bits=4),
        NVFP4,
        NVFP4,
    ),
    "auto-round, mxfp4": (lambda: auto_round(data_type="mx_fp", act_bits=4), MXFP4, MXFP4),
    "auto-round, mxfp4 alone": (lambda: auto_round(data_type="mx_fp"), MXFP4, None),
    "compressed-tensors": (
        lambda: by_compressed("nvfp4-pack-quantized", 16, LOCAL),
        NVFP4,
        NVFP4,
    ),
    "compressed-tensors, weights alone": (
        lambda: by_compressed("nvfp4-pack-quantized", 16, None),
        NVFP4,
        None,
    ),
    "compressed-tensors, x in eight bits": (
        lambda: by_compressed("nvfp4-pack-quantized", 16, LOCAL | {"num_bits": 8}),
        NVFP4,
        None,
    ),
    "compressed-tensors, mxfp4": (
        lambda: by_compressed(
            "mxfp4-pack-quantized", 32, LOCAL | {"group_size": 32, "dynamic": True}
        ),
        MXFP4,
        MXFP4,
    ),
    "quark": (lambda: by_quark(quark_spec("fp4", "per_group", True, **MX)), MXFP4, MXFP4),
    "quark, weights alone": (lambda: by_quark(None), MXFP4, None),
    "quark, scales of x stored": (
        lambda: by_quark(quark_spec("fp4", "per_group", **MX)),
        MXFP4,
        None,
    ),
    "quark, x in eight bits": (
        lambda: by_quark(quark_spec("fp8_e4m3", "per_tensor", True)),
        MXFP4,
        None,
    ),
}


@pytest.mark.parametrize(("read", "plain", "native"), FORMS.values(), ids=FORMS)
def test_the_configuration_says_which_x(read, plain: QuantSpec, native: QuantSpec | None) -> None:
    stored = read().storage(LAYER, (64, 64))
    assert (stored.weight, stored.activation) == (plain, None)
    if native is None:
        assert stored.native is None
    else:
        assert stored.native.weight == native
        assert stored.native.activation == replace(native, dynamic=True)
    assert read().storage("model.layers.3.mlp.experts.7.up_proj", (64, 64)) == stored


@pytest.mark.parametrize(
    ("read", "name"),
    [(modelopt, "input_scale"), (FORMS["compressed-tensors"][0], "input_global_scale")],
)
def test_files_without_a_scale_of_x_have_weights_alone(read, name: str) -> None:
    found = read()
    expert = f"model.layers.3.mlp.experts.7.up_proj.{name}"
    found.survey([f"model.language_model.{LAYER[6:]}.{name}", expert, "model.norm.weight"])
    assert found.storage(LAYER, (64, 64)).native is not None
    assert found.storage(LAYER.replace("3", "4"), (64, 64)).native is None
    for number, there in (("7", True), ("8", False)):
        stored = found.storage(f"layers.3.mlp.experts.{number}.up_proj", (64, 64))
        assert (stored.native is not None) == there


def native(spec: LinearSpec, facts: DeviceFacts):
    return accept_unless({"not my form": spec.activation is None}, 50, "four bits")


def plain(spec: LinearSpec, facts: DeviceFacts):
    return accept_unless({"not my form": spec.activation is not None}, 10, "as it is")


OFFERED = [
    Candidate("linear", "native", native, PlainLinear),
    Candidate("linear", "plain", plain, PlainLinear),
]


def context(found: StoredFormat, **options: object) -> BuildContext:
    selector = Selector(SLOTS, OFFERED, FACTS, **options)
    return BuildContext(selector, "float32", "float32", 4, 32, found)


def layer_of(ctx: BuildContext) -> Linear:
    parts = [(LAYER, 24), (LAYER.replace("gate", "up"), 40)]
    return Linear(ctx, Matrix(ctx, parts, 64))


def written(kind: str, x_scale: float) -> tuple[Mapping[str, Tensor], Tensor]:
    """Return the tensors of both matrices, and their numbers."""
    tensors, dense = {}, []
    for name, rows, size in (("gate", 24, 0.1), ("up", 40, 3.0)):
        parts, numbers = fp4(16, kind, x_scale)(torch.randn(rows, 64) * size)
        layer = LAYER.replace("gate", name)
        tensors |= {f"{layer}.{part}": tensor for part, tensor in parts.items()}
        dense.append(numbers)
    return tensors, torch.cat(dense)


def test_a_scale_of_x_that_one_of_two_has_is_left_out() -> None:
    tensors, dense = written("modelopt", 0.1)
    lacking = {name: t for name, t in tensors.items() if name != f"{LAYER}.input_scale"}
    found = modelopt()
    found.survey(lacking)
    ctx = context(found)
    ctx.weights.follow(found)
    layer = layer_of(ctx)
    for name, tensor in lacking.items():
        if ctx.weights.wants(name):
            ctx.weights.feed(name, tensor)
    ctx.weights.check_complete()
    x = torch.randn(5, 64)
    torch.testing.assert_close(layer(x), x @ dense.T, rtol=1e-4, atol=1e-4)


def test_numbers_that_go_by_two_names_are_refused() -> None:
    eight = {"weights": weights(8, "int", "channel", None)}
    groups = {
        "a": {"targets": ["re:.*gate_proj"], "format": "pack-quantized", **eight},
        "b": {"targets": ["re:.*up_proj"], "format": "int-quantized", **eight},
    }
    found = compressed_tensors.read(compressed("mixed", {}, config_groups=groups))
    with pytest.raises(CheckpointError, match="up_proj are multiplied together, but stored in"):
        layer_of(context(found))


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, "native"),
        ({"require_native": True}, "native"),
        ({"forced": {"linear": "plain"}}, "plain"),
        ({"forced": {"linear": "plain,native"}}, "native"),
        ({"batch_invariant": True}, "reference"),
    ],
)
@pytest.mark.parametrize("kind", ["modelopt", "nvfp4"])
def test_layers_take_the_native_form_unless_told_otherwise(
    kind: str, options: dict, chosen: str
) -> None:
    x = torch.randn(5, 64)
    x_scale = float(x.abs().max()) / (6 * 448)
    tensors, dense = written(kind, x_scale)
    found = FORMS["modelopt" if kind == "modelopt" else "compressed-tensors"][0]()
    found.survey(tensors)
    ctx = context(found, **options)
    layer = layer_of(ctx)
    [decision] = ctx.selector.decisions.values()
    assert decision.chosen == chosen
    for name in list(ctx.weights.expected):
        ctx.weights.feed(name, tensors[name])
    ctx.weights.check_complete()
    if chosen == "native":
        groups = x.unflatten(1, (-1, 16))
        scale = (groups.abs().amax(2, keepdim=True) / 6 / x_scale).to(torch.float8_e4m3fn)
        by = scale.float() * x_scale
        grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        codes = ((groups / by).abs()[..., None] - grid).abs().argmin(-1)
        x = (grid[codes] * groups.sign() * by).flatten(1)
    wanted = x @ dense.T
    assert (layer(x) - wanted).norm() / wanted.norm() < 1e-3


def test_matrices_of_which_some_have_no_scale_of_x() -> None:
    found = modelopt()
    found.survey([f"{LAYER}.input_scale"])
    ctx = context(found)
    layer_of(ctx)
    [decision] = ctx.selector.decisions.values()
    assert decision.chosen == "plain"


def native_experts(spec: MoeSpec, facts: DeviceFacts):
    return native(spec.gate_up, facts)


MIXTURE = Mixture(
    hidden_size=64,
    intermediate_size=32,
    num_experts=4,
    top_k=2,
    activation="silu",
    router=RouterSpec(renormalize=True),
)


def experts(kind: str, without: Collection[str] = ()) -> tuple[BuildContext, MoE, dict]:
    """Return a mixture, and its tensors, of which a checkpoint lacks some."""
    tensors = {"0.mlp.gate.weight": torch.randn(4, 64)}
    for i in range(4):
        for name, shape in (("gate", (32, 64)), ("up", (32, 64)), ("down", (64, 32))):
            parts, _ = fp4(16, kind, 0.01 * (i + 1))(torch.randn(shape))
            layer = f"0.mlp.experts.{i}.{name}_proj"
            tensors |= {f"{layer}.{part}": tensor for part, tensor in parts.items()}
    found = FORMS["modelopt" if kind == "modelopt" else "compressed-tensors"][0]()
    found.survey(tensors.keys() - set(without))
    ctx = context(found)
    ctx.selector = Selector(SLOTS, [Candidate("moe", "native", native_experts, PlainMoe)], FACTS)
    return ctx, MoE(ctx, "0.", MIXTURE), tensors


@pytest.mark.parametrize("unseen", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["modelopt", "nvfp4"])
def test_experts_take_the_native_form(kind: str, unseen: float) -> None:
    """Experts that saw no tokens have any number for a scale of x, and others decide."""
    ctx, layer, tensors = experts(kind)
    tensors |= {n: t * 0 + unseen for n, t in tensors.items() if "s.2." in n and ".input" in n}
    [decision] = [d for d in ctx.selector.decisions.values() if d.slot == "moe"]
    assert decision.chosen == "native" and not ctx.selector.forgone
    for name in list(ctx.weights.expected):
        ctx.weights.feed(name, tensors[name])
    ctx.weights.check_complete()
    [place] = ctx.weights.where("0.mlp.experts.2.down_proj.weight_scale")
    scales = [place.holder.state()[f"experts.{i}.down.input_scale"].item() for i in range(4)]
    assert scales == pytest.approx([0.01, 0.02, 0.0, 0.04])
    assert layer(torch.randn(5, 64)).isfinite().all()


@pytest.mark.parametrize("part", ["up", "down"])
def test_experts_of_which_one_has_no_scale_of_x(part: str) -> None:
    without = {f"0.mlp.experts.1.{part}_proj.input_scale"}
    ctx, _, _ = experts("modelopt", without)
    [decision] = [d for d in ctx.selector.decisions.values() if d.slot == "moe"]
    assert decision.spec.gate_up.activation is None
    assert not without & ctx.weights.expected.keys()


def test_what_is_preferred_and_not_offered_is_known() -> None:
    ctx = context(modelopt(), forced={"linear": "plain"})
    layer_of(ctx)
    MoE(ctx, "0.", MIXTURE)
    reasons = {slot: why for (slot, _), why in ctx.selector.forgone.items()}
    kernel = "--kernel names others"
    assert reasons == {"linear": (("native", kernel), ("plain", "not my form")), "moe": ()}


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_scales_of_x_are_positive(scale: float) -> None:
    tensors, _ = written("modelopt", scale)
    ctx = context(modelopt())
    layer_of(ctx)
    *others, last = ctx.weights.expected
    for name in others:
        ctx.weights.feed(name, tensors[name])
    with pytest.raises(CheckpointError, match=r"input_scale, or that of a matrix stacked with it"):
        ctx.weights.feed(last, tensors[last])
