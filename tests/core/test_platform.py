"""The platform contract: what a platform gets for free."""

import pytest

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.platform import Available, DeviceFacts, MemoryBudget, Platform


class Least(Platform):
    """The least that a platform must say."""

    name = "least"

    def probe(self) -> Available:
        return Available(1)

    def facts(self) -> DeviceFacts:
        return DeviceFacts("least", "cpu", "device", "any", 1000, 1)


def test_two_methods_make_a_platform() -> None:
    platform, config = Least(), EngineConfig()
    assert not platform.asynchronous
    assert platform.candidates() == ()
    assert platform.resolve(config) == ()
    assert platform.activate(config) == {}
    assert platform.create_worker(config) is None
    assert platform.memory_budget(config).available_bytes == 500


def test_a_platform_that_resolves_nothing_refuses_options() -> None:
    with pytest.raises(ConfigError, match="platform least has no option 'lanes'"):
        Least().resolve(EngineConfig(platform_options={"lanes": 2}))


@pytest.mark.parametrize("missing", ["probe", "facts"])
def test_both_are_needed(missing: str) -> None:
    body = {name: getattr(Least, name) for name in ("name", "probe", "facts") if name != missing}
    with pytest.raises(TypeError, match=missing):
        type("Less", (Platform,), body)()


def test_facts_are_frozen_and_comparable() -> None:
    facts = Least().facts()
    assert facts == Least().facts()
    assert hash(facts) == hash(Least().facts())
    with pytest.raises(AttributeError):
        facts.arch = "other"


@pytest.mark.parametrize(
    ("budget", "weights", "left"),
    [
        (MemoryBudget(500, free_bytes=1000), 0, 500),
        (MemoryBudget(500, free_bytes=1000), 600, 200),  # half of what is free, as before
        (MemoryBudget(500, free_bytes=1000), 2000, 0),
        (MemoryBudget(500), 200, 300),
        (MemoryBudget(0, free_bytes=0), 1, 0),
    ],
)
def test_a_budget_after_weights_have_been_loaded(
    budget: MemoryBudget, weights: int, left: int
) -> None:
    assert budget.after(weights).available_bytes == left


@pytest.mark.parametrize("values", [("1",), (None,), (1.5,), (1, "", "2")])
def test_a_budget_is_of_whole_bytes(values: tuple) -> None:
    with pytest.raises(TypeError, match=r"MemoryBudget\.\w+_bytes is of type int, not"):
        MemoryBudget(*values)
