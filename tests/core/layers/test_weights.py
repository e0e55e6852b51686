"""The weight table: names, shapes, sharing, and what it says of checkpoints that do not fit."""

import pytest
import torch

from hotshoe.errors import CheckpointError, RequestError
from hotshoe.layers import Holder, Place, WeightTable, weights


def collecting(table, name, shape):
    taken = []
    table.expect(name, shape, taken.append)
    return taken


def test_a_tensor_reaches_every_layer_that_wants_it():
    table = WeightTable()
    first, second = (collecting(table, "w", (2, 3)) for _ in range(2))
    tensor = torch.randn(2, 3)
    table.feed("w", tensor)
    assert first[0] is tensor and second[0] is tensor
    table.check_complete()


def test_names_that_layers_ask_for_are_kept():
    table = WeightTable()
    collecting(table, "text_model.layers.0", (1,))
    table.rename(r"(^|model\.)layers\.", r"\1text_model.layers.")
    assert table.known_as("text_model.layers.0") != "text_model.layers.0"
    table.keep_names()
    assert table.known_as("layers.0") == table.known_as("text_model.layers.0")
    assert table.wants(table.known_as("text_model.layers.0"))


def test_a_wrong_shape_names_both():
    table = WeightTable()
    taken = collecting(table, "layer.weight", (2, 3))
    with pytest.raises(CheckpointError, match=r"layer.weight.*\[3, 2\].*\[2, 3\]"):
        table.feed("layer.weight", torch.zeros(3, 2))
    assert not taken
    with pytest.raises(CheckpointError, match=r"layer\.weight"):
        table.check_complete()


def test_integers_are_no_weights():
    table = WeightTable()
    table.expect("w", (2,), lambda tensor: None)
    with pytest.raises(CheckpointError, match="w is of type int8, though"):
        table.feed("w", torch.zeros(2, dtype=torch.int8))
    table.feed("w", torch.zeros(2, dtype=torch.float16))


def test_unknown_tensors_are_refused_unless_declared_unused():
    table = WeightTable()
    collecting(table, "w", (1,))
    table.ignore([r"\.inv_freq$"])
    assert table.wants("w")
    assert not table.wants("layers.3.inv_freq")
    with pytest.raises(CheckpointError, match=r"layers\.3\.extra"):
        table.wants("layers.3.extra")


@pytest.mark.parametrize(
    "name", ["a.weight_scale", "a.weight.absmax", "experts.up_blocks", "a.bias"]
)
def test_parts_of_quantized_matrices_are_no_matter_of_architectures(name: str) -> None:
    table = WeightTable()
    collecting(table, "a.weight", (2, 3))
    table.unstack("experts.up", [["experts.0.up.weight"]])
    blamed = "check `architectures`" if name == "a.bias" else "quantization_config back"
    with pytest.raises(CheckpointError, match=f"holds {name}, .*{blamed}"):
        table.wants(name)
    table.quantized = True
    with pytest.raises(CheckpointError, match=r"check quantization_config .* then `archit"):
        table.wants(name)


def test_an_expected_tensor_is_wanted_even_if_a_pattern_matches():
    table = WeightTable()
    collecting(table, "norm.weight", (1,))
    table.ignore(["norm"])
    assert table.wants("norm.weight") and not table.wants("norm.bias")


def test_missing_tensors_are_counted_and_named():
    table = WeightTable()
    for name in "edcba":
        collecting(table, name, (1,))
    table.feed("b", torch.zeros(1))
    with pytest.raises(CheckpointError, match=r"lacks a, c, d and 1 more"):
        table.check_complete()


def test_two_shapes_for_one_name_are_a_programmers_error():
    table = WeightTable()
    collecting(table, "w", (1,))
    with pytest.raises(AssertionError):
        collecting(table, "w", (2,))


def kept(table: WeightTable, name: str, weight: torch.Tensor | None) -> None:
    """Expect a weight of a holder that tells its state, if there is one."""
    state = None if weight is None else lambda: {"weight": weight}
    place = Place(Holder("linear", f"of {name}", "float32", state), "weight", (0, 3), ())
    table.expect(name, (3,), lambda tensor: None, place=place)


def test_weights_in_host_memory_have_none_on_a_device():
    table = WeightTable()
    kept(table, "w", torch.ones(3))
    assert table.on_device() == []


def test_memory_on_a_device_is_told_once(monkeypatch):
    table, both = WeightTable(), torch.ones(6)
    for name, weight in zip("abc", (both[:3], both[3:], torch.ones(3)), strict=True):
        kept(table, name, weight)
    monkeypatch.setattr(weights, "HOST", torch.device("meta"))  # so that these are elsewhere
    assert [storage.nbytes() for storage in table.on_device()] == [24, 12]


def test_a_holder_that_does_not_tell_its_state_is_not_moved():
    table = WeightTable()
    kept(table, "closed", None)
    with pytest.raises(RequestError, match="candidate of closed of slot linear does not tell"):
        table.on_device()


def test_memory_of_a_device_that_cannot_be_given_back():
    table = WeightTable()
    kept(table, "w", torch.empty(3, device="meta"))
    with pytest.raises(RequestError, match="memory of device meta cannot be given back"):
        table.on_device()


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_axes_of_one_element_do_not_count(shape) -> None:
    table, found = WeightTable(), []
    table.expect("s", (1, 1), found.append)
    table.feed("s", torch.ones(shape))
    assert found[0].shape == (1, 1)


def test_unused_names_are_counted_by_their_reason():
    table = WeightTable()
    table.ignore([r"\.inv_freq$"])
    table.ignore([r"^layers\.7\."], "a layer too many")
    names = ("layers.7.a", "layers.7.b", "layers.7.a", "x.inv_freq")
    assert not any(table.wants(name) for name in names)
    assert table.unused == {"a layer too many": {"layers.7.a", "layers.7.b"}}
    assert table.notice() == {"unused weights": "2 tensors of a layer too many"}
    assert WeightTable().notice() == {}
