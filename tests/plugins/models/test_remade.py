"""Tensors that are made of others while they are read."""

import torch

from hotshoe_models.remade import Remade


class Source:
    """Remembers what was used."""

    def __init__(self) -> None:
        self.tensors = {"a": torch.ones(2), "b": torch.full((2,), 3.0), "c": torch.zeros(1)}
        self.used: list[str] = []

    def names(self):
        return list(self.tensors)

    def tensor(self, name):
        return self.tensors[name]

    def taken(self, name):
        self.used.append(name)


def test_parts_have_no_names_any_more() -> None:
    source = Source()
    made = Remade(source, {"sum": (("a", "b"), torch.add)})
    assert list(made.names()) == ["sum", "c"]
    assert made.tensor("sum").tolist() == [4.0, 4.0]
    assert made.tensor("c") is source.tensors["c"]
    made.taken("sum")
    made.taken("c")
    assert source.used == ["a", "b", "c"]


def test_a_tensor_may_be_made_of_itself() -> None:
    made = Remade(Source(), {"b": (("b",), torch.neg)})
    assert list(made.names()) == ["a", "b", "c"]
    assert made.tensor("b").tolist() == [-3.0, -3.0]
