"""References of whole layers: what they hold, and weights that come anew."""

import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LayerContext, ModelStepSpec
from hotshoe.slots.reference.accepts import supports
from hotshoe.slots.reference.decoder_layer import DecoderLayer, ModelStep
from hotshoe_conformance.cases.decoder_layer import layer

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


def feed(op: DecoderLayer, value: float) -> None:
    for part, spec in op._spec.matrices.items():
        op.load(part, {"weight": [torch.full((spec.out_features, spec.in_features), value)]})
    for part in ("input_norm", "mlp_norm"):
        op.load(part, {"weight": [torch.full((op._spec.hidden_size,), value)]})


def test_new_weights_overwrite_the_old_ones_in_place() -> None:
    op = DecoderLayer(layer(), FACTS)
    assert op.state() == {}
    feed(op, 1.0)
    held = op.state()
    assert held.keys() == {
        f"{part}.weight" for part in ("qkv", "o", "gate_up", "down", "input_norm", "mlp_norm")
    }
    assert op.nbytes() == sum(tensor.nbytes for tensor in held.values())
    feed(op, 2.0)
    assert all(bool((tensor == 2).all()) for tensor in held.values())


def test_a_product_is_that_of_the_part_alone() -> None:
    op = DecoderLayer(layer(), FACTS)
    feed(op, 0.5)
    op.bind(LayerContext(adapted={"o": lambda y, x: y.zero_()}))
    x = torch.ones(2, op._spec.o.in_features)
    assert torch.equal(op.product("o", x), torch.full((2, 48), 0.5 * x.shape[1]))


def test_a_step_has_a_layer_for_each() -> None:
    spec = ModelStepSpec(((layer(), 2), (layer(window=7), 1)))
    assert [op._spec for op in ModelStep(spec, FACTS).layers] == [layer(), layer(), layer(window=7)]


def test_what_it_does_not_compute_is_refused() -> None:
    for changes, said in (
        ({"kv_dtype": "float8_e4m3fn", "kv_scales": "tensor"}, "has scales by token"),
        ({"kind": "relu2"}, "knows the activations"),
    ):
        assert said in supports(layer(**changes), FACTS).reason
    mixed = ModelStepSpec(((layer(), 1), (layer(hidden=64), 1)))
    assert "layers of one size" in supports(mixed, FACTS).reason
    assert supports(ModelStepSpec(((layer(), 1),)), FACTS).accepted
