"""The split: what evaluation asks is never drawn in training."""

import pytest
from demo_data.words import is_held_out, spoken, with_articles


@pytest.mark.parametrize("held_out", [False, True])
def test_open_values_stay_on_their_side(worlds, held_out: bool) -> None:
    for world in worlds(200, held_out):
        for value in (world.first_name(), world.word(), world.value("code"), world.city()):
            assert is_held_out(str(value)) is held_out


def test_one_value_in_sixteen_is_held_out() -> None:
    share = sum(is_held_out(str(i)) for i in range(20_000)) / 20_000
    assert 0.05 < share < 0.075


def test_fresh_gives_up_when_nothing_fits(worlds) -> None:
    (world,) = worlds(1, held_out=not is_held_out("only"))
    with pytest.raises(ValueError, match="no value"):
        world.fresh(lambda: "only")


def test_every_kind_gives_values(worlds) -> None:
    (world,) = worlds(1)
    for kind in world.kinds:
        assert len(set(world.distinct(kind, 2))) == 2, kind


def test_articles_and_truth_values_read_well() -> None:
    assert with_articles("a otter, A apple, a user, a dog, a umbrella") == (
        "an otter, An apple, a user, a dog, an umbrella"
    )
    assert [spoken(v) for v in (True, False, 1, "x")] == ["true", "false", "1", "x"]
