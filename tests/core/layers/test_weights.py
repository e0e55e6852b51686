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


def test_weights_in_host_memory_stay_where_they_are():
    table = WeightTable()
    weight = torch.ones(3)
    holder = Holder("linear", "a", "float32", lambda: {"weight": weight})
    place = Place(holder, "weight", (0, 3), ())
    table.expect("w", (3,), weight.copy_, place=place)
    address = weight.data_ptr()
    table.move_to_host()()
    assert weight.data_ptr() == address and weight.tolist() == [1, 1, 1]


def test_a_holder_that_does_not_tell_its_state_is_not_moved():
    table = WeightTable()
    place = Place(Holder("linear", "closed", "float32", None), "weight", (0, 3), ())
    table.expect("w", (3,), lambda tensor: None, place=place)
    with pytest.raises(RequestError, match="candidate closed of slot linear does not tell"):
        table.move_to_host()


def test_a_host_without_room_leaves_all_weights_where_they_are(monkeypatch):
    table, kept = WeightTable(), [torch.ones(3), torch.ones(3)]
    for name, weight in zip("ab", kept, strict=True):
        holder = Holder("linear", name, "float32", lambda w=weight: {"weight": w})
        place = Place(holder, "weight", (0, 3), ())
        table.expect(name, (3,), lambda tensor: None, place=place)
    rooms = iter([torch.empty(12, dtype=torch.uint8)])
    monkeypatch.setattr(weights, "HOST", torch.device("meta"))  # so that these are elsewhere
    monkeypatch.setattr(torch, "empty", lambda *sizes, **options: next(rooms))
    with pytest.raises(StopIteration):
        table.move_to_host()
    assert [weight.tolist() for weight in kept] == [[1, 1, 1], [1, 1, 1]]


def test_memory_of_a_device_that_cannot_be_given_back():
    table = WeightTable()
    weight = torch.empty(3, device="meta")
    holder = Holder("linear", "a", "float32", lambda: {"weight": weight})
    table.expect("w", (3,), lambda tensor: None, place=Place(holder, "weight", (0, 3), ()))
    with pytest.raises(RequestError, match="memory of device meta cannot be given back"):
        table.move_to_host()


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
