"""References judge every field of their specifications, and compute exactly what they accept."""

from dataclasses import fields, replace

import pytest
import torch

from hotshoe.errors import SelectionError
from hotshoe.lazy import resolve_lazy
from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    PLAIN_LAYOUT,
    SLOTS,
    Alibi,
    AttentionSpec,
    GatedDeltaSpec,
    GatedMlpSpec,
    IndexerSpec,
    LinearSpec,
    MlaAttentionSpec,
    MoeSpec,
    NormSpec,
    QuantSpec,
    RotaryAndCacheSpec,
    RouterSpec,
    Selector,
    SparseMlaSpec,
)
from hotshoe.slots.reference.accepts import supports
from hotshoe.slots.reference.linear import Linear, quantize_rows

FACTS = DeviceFacts("null", "cpu", "nothing", "none", 1 << 30, 1)
W8 = QuantSpec("int8", "channel", online=True)
A8 = QuantSpec("int8", "token", dynamic=True)
FLOATS = QuantSpec("fp8_e4m3", "channel", symmetric=False)
ATTENTION = AttentionSpec(4, 2, 8, "float32", "int8", 4, 1.0, kv_scales="token")
WRITER = RotaryAndCacheSpec(
    4, 2, 8, 8, "float32", "float8_e4m3fn", 4, PLAIN_LAYOUT, kv_scales="tensor"
)
LATENT = MlaAttentionSpec(2, 8, 8, 4, 8, "float32", "int8", 4, 1.0)
LINEAR = LinearSpec(32, 24, "float32", weight=W8, activation=A8)
MOE = MoeSpec(LinearSpec(8, 24, "float32"), LinearSpec(12, 8, "float32"), 6, 2, "silu")


def routed(**changes) -> MoeSpec:
    return replace(MOE, router=RouterSpec(**changes))


def reason(spec) -> str:
    verdict = supports(spec, FACTS)
    assert verdict.score in (0, None) and not verdict.defect
    return verdict.reason


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (replace(ATTENTION, kv_dtype="uint8"), "not in kv_dtype uint8"),
        (replace(ATTENTION, kv_scales="none"), "needs kv_scales for the kv_dtype int8"),
        (replace(ATTENTION, v_head_dim=4), "values narrower than keys in float32"),
        (replace(ATTENTION, v_head_dim=9), "values of 1 to 8 channels, as keys have, not 9"),
        (replace(ATTENTION, alibi=Alibi(1)), "has slopes of 1 heads, not of "),
        (replace(WRITER, kv_scales="block"), "knows the kv_scales none, tensor, token, not block"),
        (replace(WRITER, kv_dtype="bfloat16"), "8 bits alone, not of kv_dtype bfloat16"),
        (
            replace(ATTENTION, block_size=1, num_kv_heads=1, head_dim=10),
            "not behind 10; use a block_size that 4 divides",
        ),
        (LATENT, "multiples of 16 bytes, not 8 and 16; use --kv-cache-dtype auto"),
        (replace(LATENT, kv_dtype="uint8"), "not in uint8; use --kv-cache-dtype auto"),
        (replace(LINEAR, dtype="float64"), "not in dtype float64"),
        (replace(LINEAR, out_dtype="int8"), "not in out_dtype int8"),
        (replace(LINEAR, weight=None), "by quantized weights alone"),
        (replace(LINEAR, activation=replace(A8, format="fp8_e4m3")), "operands of one format"),
        (replace(LINEAR, activation=replace(A8, dynamic=False)), "one scale from the checkpoint"),
        (replace(LINEAR, activation=replace(A8, granularity="tensor")), "with a scale per token"),
        (replace(LINEAR, activation=replace(A8, symmetric=False)), "symmetrically"),
        (replace(LINEAR, weight=replace(W8, format="mxfp4"), activation=None), "not as mxfp4"),
        (
            replace(LINEAR, weight=replace(W8, format="fp4_e2m1"), activation=None),
            "has fp4_e2m1 from a checkpoint alone",
        ),
        (
            replace(LINEAR, activation=QuantSpec("fp4_e2m1", "group", 64, dynamic=True)),
            "4-bit floats by groups of 16 or 32",
        ),
        (replace(LINEAR, weight=replace(W8, packing="awq")), "int8 packed as awq"),
        (replace(LINEAR, weight=replace(W8, granularity="token")), "not token"),
        (replace(LINEAR, weight=replace(W8, dynamic=True)), "none from a step"),
        (replace(LINEAR, weight=replace(W8, granularity="group")), "group_size that divides 32"),
        (
            replace(LINEAR, weight=replace(W8, granularity="group", group_size=5)),
            "divides 32 inputs, not 5",
        ),
        (replace(LINEAR, weight=replace(W8, granularity="block")), "needs a block_shape"),
        (replace(LINEAR, weight=replace(W8, symmetric=False)), "from a checkpoint alone"),
        (
            replace(
                LINEAR, weight=QuantSpec("fp8_e4m3", "channel", symmetric=False), activation=None
            ),
            "zero points of integers",
        ),
        (NormSpec(8, 1e-6, "float32", quant=replace(A8, format="int4")), "not to int4"),
        (NormSpec(8, 1e-6, "float32", quant=W8), "scales that are computed as they come"),
        (
            NormSpec(8, 1e-6, "float32", quant=QuantSpec("fp4_e2m1", "group", 16, dynamic=True)),
            "quantizes results to 8 bits",
        ),
        (GatedMlpSpec(LINEAR, LINEAR, "silu"), "twice as many outputs"),
        (GatedMlpSpec(replace(LINEAR, dtype="int8"), LINEAR, "silu"), "not in dtype int8"),
        (GatedMlpSpec(LINEAR, LINEAR, "relu2"), "knows the activations silu"),
        (replace(MOE, gated=False), "needs as many outputs of gate_up"),
        (replace(MOE, down=LINEAR), "needs twice as many outputs of gate_up"),
        (replace(MOE, activation="relu"), "knows the activations silu, gelu, gelu_tanh, relu2"),
        (replace(MOE, activation="gelu", alpha=1.7), "an alpha for silu alone, not for gelu"),
        (replace(MOE, top_k=7), "chooses 1 to 6 experts, not 7"),
        (replace(MOE, top_k=0), "chooses 1 to 6 experts, not 0"),
        (
            routed(scoring="hash"),
            "knows the scorings softmax, sigmoid, sparsemixer, sqrtsoftplus, not hash",
        ),
        (routed(scoring="sparsemixer", correction=True), "neither a correction nor groups"),
        (routed(group_score="sum"), "knows the group scores max, top2, not sum"),
        (routed(groups=4), "groups of equal size, not 4 of 6 experts"),
        (routed(groups=0), "groups of equal size, not 0 of 6 experts"),
        (routed(groups=3, groups_kept=4), "keeps 1 to 3 groups, not 4"),
        (replace(routed(groups=3), top_k=3), "chooses 1 to 2 experts, not 3"),
        (replace(routed(groups=6, groups_kept=2, group_score="top2")), "two experts in a group"),
    ],
)
def test_what_is_not_computed_is_refused_by_field(spec, words) -> None:
    assert words in reason(spec)


def test_nobody_who_serves_is_one_clear_error() -> None:
    selector = Selector(SLOTS, (), FACTS)
    with pytest.raises(SelectionError, match=r"no candidate of slot linear serves .*mxfp4"):
        selector.decide("linear", replace(LINEAR, weight=replace(W8, format="mxfp4")))


WEIGHTS = [
    QuantSpec(form, granularity, **more)
    for form in ("int8", "int4", "fp8_e4m3")
    for granularity, more in (
        ("tensor", {}),
        ("channel", {}),
        ("group", {"group_size": 8}),
        ("block", {"block_shape": (16, 12)}),
    )
]


def made(quant: QuantSpec, rows: int, columns: int, symmetric: bool = True):
    """Return stored values, scales and zero points as a checkpoint has them, and W in float64."""
    height, width = quant.block_shape or (1, 1)
    shape = {
        "tensor": (1,),
        "channel": (rows,),
        "group": (rows, columns // (quant.group_size or 1)),
        "block": (-(-rows // height), -(-columns // width)),
    }[quant.granularity]
    scale, zero = torch.rand(shape) + 0.5, torch.randint(-3, 4, shape)
    if quant.format == "fp8_e4m3":
        values = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    else:
        largest = 127 if quant.format == "int8" else 7
        values = torch.randint(-largest, largest + 1, (rows, columns)).to(torch.int8)
    dense = torch.zeros(rows, columns, dtype=torch.float64)
    for i in range(rows):
        for j in range(columns):
            at = {
                "tensor": (0,),
                "channel": (i,),
                "group": (i, j // (quant.group_size or 1)),
                "block": (
                    i // (quant.block_shape or (1, 1))[0],
                    j // (quant.block_shape or (1, 1))[1],
                ),
            }[quant.granularity]
            shift = 0 if symmetric else int(zero[at])
            dense[i, j] = (float(values[i, j]) - shift) * float(scale[at])
    return values, scale, zero, dense


@pytest.mark.parametrize("quant", WEIGHTS, ids=str)
@pytest.mark.parametrize("rows_quantized", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
def test_every_accepted_form_of_a_weight_is_computed(quant, rows_quantized, symmetric) -> None:
    quant = replace(quant, symmetric=symmetric)
    activation = QuantSpec(quant.format, "token", dynamic=True) if rows_quantized else None
    spec = LinearSpec(32, 40, "float32", weight=quant, activation=activation)
    if reason(spec):
        assert quant.format == "int4" or not symmetric
        return
    parts = [made(quant, rows, 32, symmetric) for rows in (24, 16)]
    op = Linear(spec, FACTS)
    tensors = {"weight": [p[0] for p in parts], "weight_scale": [p[1] for p in parts]}
    if not symmetric:
        tensors["weight_zero_point"] = [p[2] for p in parts]
    op.load(tensors)
    x = torch.randn(5, 32)
    wide = x.double()
    if activation is not None:
        values, scale = quantize_rows(x, quant.format)
        wide = values.double() * scale.double()[:, None]
    expected = wide @ torch.cat([p[3] for p in parts]).T
    torch.testing.assert_close(op(x).double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("quant", WEIGHTS, ids=str)
def test_weights_are_quantized_online_as_finely_as_asked(quant) -> None:
    spec = LinearSpec(32, 24, "float32", weight=replace(quant, online=True))
    assert not reason(spec)
    weight, x = torch.randn(24, 32), torch.randn(7, 32)
    weight[3] *= 50  # one row must not take the precision of others, where scales are finer
    op = Linear(spec, FACTS)
    op.load({"weight": [weight]})
    expected = x.double() @ weight.double().T
    error = (op(x).double() - expected)[:, 16:].abs().max()
    step = {"int8": 1 / 254, "int4": 1 / 14, "fp8_e4m3": 1 / 16}[quant.format]
    largest = weight.abs().max() if quant.granularity == "tensor" else weight[16:].abs().max()
    assert error <= step * float(largest) * float(x.abs().sum(1).max())


def test_every_field_of_every_specification_is_judged_or_computed() -> None:
    """A type, format or activation that nobody knows is refused wherever it stands."""
    from hotshoe_conformance.cases import SUITES

    seen = set()
    for name, slot in SLOTS.items():
        if name not in SUITES or slot.outside or name == "communicator":
            continue
        judge = resolve_lazy(slot.reference_supports)
        for spec in {setup.spec for setup in SUITES[name].grid(())}:
            if not judge(spec, FACTS).accepted:  # the suite asks about forms of the future too
                continue
            for changed, field in foreign(spec):
                seen.add((name, field))
                assert not judge(changed, FACTS).accepted, (field, changed)
    assert {("linear", "weight.format"), ("gated_mlp", "down.dtype")} <= seen
    assert {("moe", "router.scoring"), ("moe", "gate_up.dtype")} <= seen
    assert {("attention", "kv_dtype"), ("rms_norm", "quant.granularity")} <= seen


def foreign(spec, path: str = ""):
    """Yield specifications with one word replaced by one that nobody knows, and its place."""
    for field in fields(spec):
        value = getattr(spec, field.name)
        if isinstance(value, str) and field.name not in ("name", "k_axes", "v_axes"):
            yield replace(spec, **{field.name: "unheard_of"}), path + field.name
        elif isinstance(value, (QuantSpec, LinearSpec, RouterSpec)):
            for changed, place in foreign(value, f"{path}{field.name}."):
                yield replace(spec, **{field.name: changed}), place


DELTA = GatedDeltaSpec(4, 2, 8, 8, 4, "float32", "float32", "float32", 16, 1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"decay_floor": 0.0}, "needs a decay_floor below 0"),
        ({"decay": "channel", "gate": "sigmoid", "checkpoints": "all"}, ""),
        ({"decay": "token"}, "decay for each head, channel, not for each token"),
        ({"gate": "gelu"}, "knows the gates silu, sigmoid, not gelu"),
        ({"num_key_heads": 3}, "same number of heads"),
        ({"conv_width": 1}, "conv_width of at least 2"),
        ({"checkpoints": "some"}, "knows the checkpoints"),
        ({"state_dtype": "float64"}, "state_dtype float64"),
    ],
)
def test_gated_delta_blocks_are_judged(changes, message) -> None:
    found = reason(replace(DELTA, **changes))
    assert message in found and bool(message) == bool(found)


ROWS = MlaAttentionSpec(4, 8, 8, 4, 8, "float32", "float32", 16, 0.5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (IndexerSpec(4, 8, 4, 16, "float32", "bfloat16", 16, True), ""),
        (IndexerSpec(4, 8, 4, 0, "float32", "float32", 16), "at least one token, not 0"),
        (IndexerSpec(4, 8, 10, 2, "float32", "float32", 16), "even number of 8 channels, not 10"),
        (IndexerSpec(4, 8, 3, 2, "float32", "float32", 16), "even number of 8 channels, not 3"),
        (IndexerSpec(4, 8, 4, 2, "float32", "float8_e4m3fn", 16), "use --kv-cache-dtype auto"),
        (IndexerSpec(4, 8, 4, 2, "int8", "float32", 16), "not in dtype int8"),
        (SparseMlaSpec(ROWS, 1), ""),
        (SparseMlaSpec(ROWS, 0), "at least one token, not to 0"),
        (SparseMlaSpec(replace(ROWS, kv_dtype="uint8"), 4), "keeps rows in"),
        (SparseMlaSpec(replace(ROWS, dtype="int8"), 4), "not in dtype int8"),
    ],
)
def test_choices_of_tokens_are_judged(spec, message) -> None:
    found = reason(spec)
    assert message in found and bool(message) == bool(found)
