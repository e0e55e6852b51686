"""A plugin's format that is wrong bears the plugin's name, whatever is wrong."""

from typing import Any

import pytest
import torch

from hotshoe.errors import CheckpointError, PluginError
from hotshoe.foreign import foreign
from hotshoe.layers import OnlineFormat, Share, Storage, WeightFormat
from hotshoe.layers.guarded import GuardedFormat
from hotshoe.slots import QuantSpec

STORED = Storage(QuantSpec("int8", "channel"))
GUARD = foreign(lambda error: PluginError(f"plugin mine: {error}"), (CheckpointError,))
WHOLE = Share((slice(0, 6),), slice(0, 4))
WEIGHT = torch.zeros(6, 4, dtype=torch.int8)
SCALE = torch.ones(6)


class Mine(OnlineFormat):
    """A format; a test says what its methods return, or that they raise."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(STORED)
        self.answers = answers

    def storage(self, layer, shape):
        if layer == "none":
            raise CheckpointError("no matrix")
        return self.answers.get("storage", STORED)

    def tensors(self, layer, shape, share):
        found = self.answers.get("tensors") or super().tensors(layer, shape, share)
        return None if found == "nothing" else found

    def canonical(self, layer, tensors):
        return self.answers.get("canonical") or {"weight": [WEIGHT], "weight_scale": [SCALE]}

    def unpack(self, layer):
        self.answers[layer] = "plain"

    def join(self, layers):
        self.answers["joined"] = layers

    def decode(self, source):
        raise KeyError(source)


def used(**answers: Any) -> Any:
    guarded = GuardedFormat(Mine(**answers), GUARD)
    stored = guarded.storage("layer", (6, 4))
    guarded.tensors("layer", (6, 4), WHOLE)
    return stored, guarded.canonical("layer", {})


def test_what_is_well_goes_through() -> None:
    stored, parts = used()
    assert stored is STORED
    assert [list(part.shape) for part in parts["weight"]] == [[6, 4]]
    guarded = GuardedFormat(Mine(storage=None), GUARD)
    assert guarded.storage("layer", (6, 4)) is None
    assert isinstance(guarded, WeightFormat)
    guarded.unpack("layer")
    assert guarded._inner.answers["layer"] == "plain"
    guarded.join(["layer", "other"])
    assert guarded._inner.answers["joined"] == ["layer", "other"]
    assert guarded.kv_scales is None


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"storage": "int8"}, "storage() returned str, not a Storage or None"),
        ({"storage": Storage("int8")}, "storage() has 'int8' as weight, not a QuantSpec"),
        (
            {"storage": Storage(STORED.weight, None, Storage("int4"))},
            "storage() has 'int4' as weight, not a QuantSpec",
        ),
        ({"tensors": "nothing"}, "tensors() returned None, not TensorSpecs by name"),
        ({"tensors": {"weight": 3}}, "tensors() has 3 under 'weight', not a TensorSpec"),
        ({"canonical": {"scale": [SCALE]}}, "canonical() of layer returned no parts of a weight"),
        ({"canonical": {"weight": WEIGHT}}, "canonical() of layer has no list of tensors as weig"),
        ({"canonical": {"weight": [WEIGHT.T]}}, "has a weight [4, 6], not [rows, 4]"),
        (
            {"canonical": {"weight": [WEIGHT], "weight_scale": [SCALE[:3]]}},
            "canonical() of layer has weight_scale of [3] for [6] rows",
        ),
    ],
)
def test_what_is_wrong_is_the_plugins(answers: dict[str, Any], said: str) -> None:
    with pytest.raises(PluginError, match="plugin mine: ") as caught:
        used(**answers)
    assert said in str(caught.value)


def test_other_methods_are_guarded_too_and_users_mistakes_pass() -> None:
    guarded = GuardedFormat(Mine(), GUARD)
    with pytest.raises(PluginError, match="plugin mine: 'x'"):
        guarded.decode("x")
    with pytest.raises(CheckpointError, match="no matrix"):
        GuardedFormat(Mine(), GUARD).storage("none", (6, 4))
