"""Ranks of matrices by the place of their adapter."""

from hotshoe.layers.adapter_ranks import Ranks


def test_a_place_shows_the_ranks_of_its_adapter() -> None:
    ranks = Ranks(2)
    for product in (["q", "k"], ["shared"], ["shared"], ["o"]):
        ranks.expect(product)
    ranks.keep("one", {"k": 3, "o": 4, "of another rank": 5})
    ranks.keep("two", {"q": 1})
    qk, o = ranks.of(["q", "k"]), ranks.of(["o"])
    ranks.put(0, "one")
    ranks.put(1, "two")
    assert (qk.tolist(), o.tolist()) == ([[0, 3], [1, 0]], [[4], [0]])
    ranks.put(0, "two")
    ranks.drop("one")
    assert (qk.tolist(), o.tolist()) == ([[1, 0], [1, 0]], [[0], [0]])
