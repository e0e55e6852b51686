"""The cases of whole layers find whoever forgets or confuses a part of one."""

from dataclasses import replace

import pytest

from hotshoe.slots.reference.decoder_layer import DecoderLayer, ModelStep

LAYER, STEP = "decoder_layer", "model_step"


def test_the_references_pass(defects) -> None:
    assert defects(LAYER, DecoderLayer) == []
    assert defects(STEP, ModelStep) == []


@pytest.mark.parametrize(
    "changed",
    [
        lambda s: replace(s, attention=replace(s.attention, window=None)),
        lambda s: replace(s, attention=replace(s.attention, softcap=None)),
        lambda s: replace(s, attention=replace(s.attention, scale=0.125)),
        lambda s: replace(s, mlp=replace(s.mlp, activation="silu")),
        lambda s: replace(s, norm_offset=0.0),
        lambda s: replace(s, norm_eps=1e-5),
        lambda s: replace(s, qk_norm_offset=0.0),
        lambda s: replace(s, interleaved=False),
    ],
)
def test_a_field_that_is_overlooked(finds, changed) -> None:
    assert finds(LAYER, lambda spec, facts: DecoderLayer(changed(spec), facts))


def without(part):
    def load(self, name, tensors):
        if name == part:
            tensors = {kind: [t * 0 for t in parts] for kind, parts in tensors.items()}
        DecoderLayer.load(self, name, tensors)

    return {"load": load}


def swapped(self, name, tensors):
    parts = {kind: found[::-1] if name == "gate_up" else found for kind, found in tensors.items()}
    DecoderLayer.load(self, name, parts)


def no_residual(self, x, *rest):
    return DecoderLayer.__call__(self, x, *rest) - x


def forgetful(self, x, cache, positions, slots, prepared):
    """Leaves the cache as it was."""
    before = cache.clone()
    y = DecoderLayer.__call__(self, x, cache, positions, slots, prepared)
    cache.copy_(before)
    return y


def careless(self, x, cache, *rest):
    cache[:, :, -1:] = 0
    return DecoderLayer.__call__(self, x, cache, *rest)


def overwriting(self, x, *rest):
    y = DecoderLayer.__call__(self, x, *rest)
    x.mul_(2)
    return y


@pytest.mark.parametrize(
    "methods",
    [
        without("mlp_norm"),
        without("sinks"),
        {"load": swapped},
        {"bind": lambda self, context: DecoderLayer.bind(self, replace(context, adapted={}))},
        {"__call__": no_residual},
        {"__call__": forgetful},
        {"__call__": careless},
        {"__call__": overwriting},
    ],
)
def test_layers_that_compute_something_else(finds, methods) -> None:
    assert finds(LAYER, type("Mutant", (DecoderLayer,), methods))


class OneCache(ModelStep):
    """Has all layers read the cache of the first one."""

    def __call__(self, x, caches, positions, views):
        return super().__call__(x, [caches[0]] * len(caches), positions, views)


class Reversed(ModelStep):
    """Runs the last layer first."""

    def __call__(self, x, caches, positions, views):
        for layer, cache, view in [*zip(self.layers, caches, views, strict=True)][::-1]:
            x = layer(x, cache, positions, view.slot_mapping, view.prepared)
        return x


@pytest.mark.parametrize("kind", [OneCache, Reversed])
def test_steps_that_confuse_layers(finds, kind) -> None:
    assert finds(STEP, kind)
