"""Per-layer inputs: rows of a table behind the embeddings, a projection, and what a layer adds."""

import pytest
import torch
import torch.nn.functional as F

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector
from hotshoe.types.mesh import Axis
from hotshoe_models.per_layer import LayerInput, PerLayerDecoder
from hotshoe_models.spec import DecoderSpec, LayerSpec
from hotshoe_models.stream_specs import PerLayerSpec

CPU = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
SPEC = DecoderSpec(
    vocab_size=11,
    hidden_size=6,
    layers=(LayerSpec(None),) * 3,
    activation="gelu_tanh",
    norm_eps=1e-6,
    tied=True,
    per_layer=PerLayerSpec(size=4, rows=8, scale=2.0),
)


class Collecting(PerLayerDecoder):
    """Its layers keep what they get and hand the state on."""

    def build_layer(self, spec, ctx, i, rotaries, mixers):
        self.got = []

        def layer(state, own, batch, keep):
            self.got.append(own)
            return state if keep is None else state[keep]

        return layer


class Step:
    outputs_at = torch.tensor([4, 1])


def context(**more):
    return BuildContext(Selector(SLOTS, [], CPU), "float32", "float32", 4, 32, **more)


def feed(ctx):
    weights = {name: torch.randn(w.shape) for name, w in ctx.weights.expected.items()}
    for name, weight in weights.items():
        ctx.weights.feed(name, weight)
    return {name.removeprefix("model."): weight.double() for name, weight in weights.items()}


def rms(x, weight):
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def test_inputs_are_made_of_ids_and_embeddings_whatever_replaces_these() -> None:
    ctx = context()
    model = Collecting(SPEC, ctx)
    weights = feed(ctx)
    ids = torch.tensor([3, 7, 8, 0, 10, 3], dtype=torch.int32)
    hidden = model.embed(ids)
    assert hidden.shape == (6, 6 + 12)
    hidden[2, :6] = given = torch.randn(6)  # as a request's embeddings do
    out = model.forward(hidden, Step())
    embedded = weights["embed_tokens.weight"][ids.long()]
    embedded[2] = given.double()
    rows = weights["embed_tokens_per_layer.weight"][[3, 7, 0, 0, 0, 3]] * 2.0
    projected = (embedded @ weights["per_layer_model_projection.weight"].T) * 6**-0.5
    normed = rms(projected.view(6, 3, 4), weights["per_layer_projection_norm.weight"])
    wanted = (normed + rows.view(6, 3, 4)) * 0.5**0.5
    for i, own in enumerate(model.got):
        expected = wanted[:, i] if i < 2 else wanted[[4, 1], i]
        torch.testing.assert_close(own.double(), expected, rtol=1e-4, atol=1e-5)
    final = rms(embedded[[4, 1]], weights["norm.weight"])
    torch.testing.assert_close(out.double(), final, rtol=1e-4, atol=1e-5)


def test_a_layer_gates_its_input() -> None:
    ctx = context()
    layer = LayerInput(SPEC, ctx, 1)
    weights = feed(ctx)
    x, own = torch.randn(5, 6), torch.randn(5, 4)
    gate = x.double() @ weights["layers.1.per_layer_input_gate.weight"].T
    inner = F.gelu(gate, approximate="tanh") * own.double()
    up = inner @ weights["layers.1.per_layer_projection.weight"].T
    wanted = rms(up, weights["layers.1.post_per_layer_input_norm.weight"])
    torch.testing.assert_close(layer(x, own).double(), wanted, rtol=1e-3, atol=1e-4)


def test_no_stages_divide_them() -> None:
    with pytest.raises(ConfigError, match="pipeline-parallel-size of 1"):
        Collecting(SPEC, context(stage=Axis(0, 2)))
