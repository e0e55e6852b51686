"""Every family cut into stages computes, to the last bit, what it computes whole."""

import random

import pytest
import torch

from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.layers import BuildContext
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector
from hotshoe.types.mesh import Axis
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.latent import LatentMixer
from hotshoe_models.spec import DecoderSpec, LayerSpec

CPU = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
SPEC = DecoderSpec(
    vocab_size=37,
    hidden_size=12,
    intermediate_size=24,
    num_heads=6,
    num_kv_heads=3,
    head_dim=4,
    layers=(LayerSpec(None),) * 3,
    activation="silu",
    norm_eps=1e-6,
    attention_scale=0.5,
    tied=False,
)
OUTER = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}


def draw(count: int) -> list[int]:
    return [random.randrange(256) for _ in range(count)]


def test_every_family(cut_variant, checkpoints, stepper_class) -> None:
    checkpoint = checkpoints.get(cut_variant)

    def stepper(**parallel):
        return stepper_class(checkpoint.path, cut_variant.max_model_len, **parallel)

    if cut_variant.undivided:
        with pytest.raises(ConfigError, match="no stages can divide them"):
            stepper(stage=Axis(0, 2))
        return
    alone = stepper()
    layers = stages_of(alone, cut_variant.values.get("kv_source_layers", ()))
    size = len(layers)
    stages = [stepper(stage=Axis(i, size), stage_layers=layers) for i in range(size)]
    for step in [{0: draw(5), 1: draw(3)}, {1: draw(1), 0: draw(1)}, {0: draw(2), 2: draw(6)}]:
        hidden = None
        for stage in stages:
            hidden = stage.forward(step, hidden)
        found = stages[-1].model.head(hidden, "generate")
        assert torch.equal(found, torch.cat(list(alone.step(step).values())))


@pytest.mark.parametrize(
    "name", ["transformers-gemma2", "transformers-granite", "flex-olmo", "olmo", "helium"]
)
def test_code_of_transformers(name, variants, checkpoints, stepper_class) -> None:
    """Windows, scaled embeddings, caps, experts, ties: three stages of a layer each."""
    checkpoint = checkpoints.get(variants[name])

    def stepper(**parallel):
        return stepper_class(checkpoint.path, 64, impl="transformers", **parallel)

    alone = stepper()
    stages = [stepper(stage=Axis(i, 3), stage_layers=(1, 1, 1)) for i in range(3)]
    assert [len(stage.ctx.cache_layers) for stage in stages] == [1, 1, 1]
    for step in [{0: draw(9), 1: draw(3)}, {1: draw(1), 0: draw(1)}, {0: draw(2), 2: draw(6)}]:
        hidden = None
        for stage in stages:
            hidden = stage.forward(step, hidden)
        found = stages[-1].model.head(hidden, "generate")
        assert torch.equal(found, torch.cat(list(alone.step(step).values())))


def stages_of(alone, sources) -> tuple[int, ...]:
    """Return the layers of each stage: one, and those that share its choice of tokens, or read its
    latents as `sources` says, with all between."""
    starts: list[int] = []
    for i, layer in enumerate(alone.model.layers):
        mixer = getattr(layer, "mixer", None)  # a layer may have two
        if not (isinstance(mixer, LatentMixer) and mixer.shares):
            starts.append(i)
        first = sources[i] if sources else i
        starts = [start for start in starts if start <= first]
    ends = [*starts[1:], len(alone.model.layers)]
    return tuple(end - start for start, end in zip(starts, ends, strict=True))


def context(rank: int, size: int, layers: tuple[int, ...] = ()) -> BuildContext:
    selector = Selector(SLOTS, [], CPU)
    return BuildContext(
        selector, "float32", "float32", 4, 32, stage=Axis(rank, size), stage_layers=layers
    )


def numbers(ctx: BuildContext) -> set[str]:
    return {name.split(".")[2] for name in ctx.weights.expected if ".layers." in name}


@pytest.mark.parametrize("tied", [False, True])
def test_each_stage_wants_its_own_weights_and_knows_the_others(tied: bool) -> None:
    whole, found = context(0, 1), [context(rank, 2, (2, 1)) for rank in range(2)]
    spec = (
        SPEC
        if not tied
        else DecoderSpec(**{name: getattr(SPEC, name) for name in SPEC.__slots__} | {"tied": True})
    )
    for ctx in (whole, *found):
        DenseDecoder(spec, ctx)
    first, last = (set(ctx.weights.expected) for ctx in found)
    assert (numbers(found[0]), numbers(found[1])) == ({"0", "1"}, {"2"})
    table = {"model.embed_tokens.weight"}
    assert first & OUTER == table
    assert last & OUTER == (OUTER - table - {"lm_head.weight"} | table if tied else OUTER - table)
    assert first | last == set(whole.weights.expected)
    assert len(found[0].cache_layers) == 2 and len(found[1].cache_layers) == 1
    for ctx in found:
        for name in whole.weights.expected:
            assert ctx.weights.wants(name) == (name in ctx.weights.expected)
            assert ctx.weights.is_elsewhere(name) != (name in ctx.weights.expected)
        with pytest.raises(CheckpointError, match="does not have"):
            ctx.weights.wants("model.layers.3.mlp.up_proj.weight")


@pytest.mark.parametrize(
    ("size", "layers", "message"),
    [
        (4, (), r"pipeline_parallel_size 4 exceeds the model's 3 layers; use 3 or less"),
        (2, (1, 1), r"pipeline_layers 1, 1 must add up to the model's 3 layers, not to 2"),
    ],
)
def test_what_cannot_be_cut_is_refused(size: int, layers: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DenseDecoder(SPEC, context(0, size, layers))
