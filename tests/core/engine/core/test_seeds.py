"""Seeds: of their own for every sequence, and the same again when asked for the same."""

from hotshoe.engine.core.seeds import Seeds, derived_seed


def test_unseeded_requests_differ_but_repeat_with_the_engine() -> None:
    def drawn(engine_seed: int) -> list[int]:
        seeds = Seeds(engine_seed)
        return [seeds.draw(None, 1)[0] for _ in range(9)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert len(set(drawn(1))) == 9


def test_seeded_requests_repeat_whatever_came_before() -> None:
    seeds = Seeds(0)
    found = seeds.draw(5, 3)
    assert len(set(found)) == 3
    assert seeds.draw(5, 3) == found


def test_derived_seeds_fit_63_bits() -> None:
    seeds = {derived_seed(s, i) for s in range(20) for i in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)
