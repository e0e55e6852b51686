"""The budget against simulated devices: it never costs much, and takes what drafts bring."""

import random

import pytest

from hotshoe.speculation.budget import LAST_WAIT, WINDOW, Acceptance, Budget

LIMIT = 8


class Device:
    """Steps of `rows` sequences, whose drafts are right with a probability each."""

    def __init__(
        self,
        rates: list[float],
        row_s: float,
        draft_s: float,
        noise: float = 0.0,
        any_s: float = 0.0,
    ):
        self.rates, self.row_s, self.draft_s, self.noise = rates, row_s, draft_s, noise
        self.any_s = any_s  # of a step with drafts, however few
        self.rng = random.Random(3)
        self.budget = Budget(LIMIT)
        self.sequences = [self.budget.follow() for _ in rates]
        self.seconds = 0.0
        self.num_tokens = self.num_drafts = 0

    def run(self, num_steps: int) -> float:
        """Step; return tokens per second over those of steps without drafts."""
        rows, begin = len(self.rates), (self.seconds, self.num_tokens)
        for _ in range(num_steps):
            self.budget.at(rows)
            wanted = [self.budget.limit(sequence) for sequence in self.sequences]
            accepted = [self._accepted(*pair) for pair in zip(wanted, self.rates, strict=True)]
            seconds = 1.0 + self.row_s * rows + self.draft_s * sum(wanted)
            seconds += self.any_s * any(wanted)
            seconds *= 1 + self.noise * self.rng.random()
            for sequence, tried, right in zip(self.sequences, wanted, accepted, strict=True):
                if tried:
                    self.budget.verified(sequence, tried, right)
            self.budget.stepped(seconds, rows, sum(wanted), sum(accepted))
            self.seconds += seconds
            self.num_tokens += rows + sum(accepted)
            self.num_drafts += sum(wanted)
        usual = rows / ((1.0 + self.row_s * rows) * (1 + self.noise / 2))
        return (self.num_tokens - begin[1]) / (self.seconds - begin[0]) / usual

    def _accepted(self, wanted: int, rate: float) -> int:
        right = 0
        while right < wanted and self.rng.random() < rate:
            right += 1
        return right


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize(
    ("num_rows", "draft_s"),
    [(1, 0.01), (1, 0.5), (4, 0.1), (4, 0.5), (32, 0.0), (32, 0.1), (32, 0.3), (200, 0.1)],
)
def test_drafts_never_cost(rate: float, draft_s: float, num_rows: int) -> None:
    device = Device([rate] * num_rows, row_s=0.02, draft_s=draft_s, noise=0.1)
    assert device.run(3000 if num_rows < 100 else 1500) > 0.98


@pytest.mark.parametrize(("any_s", "least"), [(1.0, 1.3), (6.0, 0.97)])
def test_drafts_pay_for_what_a_step_costs_by_having_any(any_s: float, least: float) -> None:
    device = Device([0.8] * 64, row_s=0.05, draft_s=0.018, noise=0.1, any_s=any_s)
    device.run(600)
    assert device.run(1500) > least


@pytest.mark.parametrize(("rate", "best"), [(0.5, 1.5), (0.8, 2.8), (1.0, 6.0)])
def test_cheap_drafts_bring_what_they_can(rate: float, best: float) -> None:
    assert Device([rate], row_s=0.02, draft_s=0.02).run(2000) > best


def test_a_full_batch_for_which_drafts_are_dear_makes_hardly_any() -> None:
    device = Device([0.7] * 64, row_s=0.2, draft_s=0.2)
    device.run(500)
    before = device.num_drafts
    device.run(2000)
    assert (device.num_drafts - before) / (2000 * 64) < 0.02


def test_each_sequence_gets_what_its_own_acceptance_is_worth() -> None:
    device = Device([0.95, 0.05], row_s=0.02, draft_s=0.1)
    device.run(200)
    while not device.budget._load.drafting or device.budget._load.trying:
        device.run(1)
    often, seldom = (device.budget.limit(sequence) for sequence in device.sequences)
    assert often >= 6
    assert seldom == 0


def test_few_drafts_that_are_tried_are_spread_over_the_sequences() -> None:
    """A head makes each sequence's next draft in the same time as one sequence's alone."""
    for num_rows, first in ((1, [4]), (3, [1, 1, 1]), (4, [1] * 4), (12, [1] * 6 + [0] * 6)):
        budget = Budget(LIMIT)
        sequences = [budget.follow() for _ in range(num_rows)]
        budget.at(num_rows)
        while not budget.drafting:
            budget.stepped(1.0, num_rows, 0, 0)
        budget.at(num_rows)
        assert [budget.limit(sequence) for sequence in sequences] == first


def test_what_has_become_worth_its_price_is_found_again() -> None:
    device = Device([0.02], row_s=0.02, draft_s=0.5)
    device.run(3000)
    device.rates, device.draft_s = [0.95], 0.02
    device.run(LAST_WAIT + 10 * WINDOW)
    assert device.run(500) > 3


def test_disturbed_steps_change_nothing() -> None:
    device = Device([0.9], row_s=0.02, draft_s=0.1)
    device.run(200)
    assert device.budget._load.drafting
    for _ in range(3):
        device.budget.stepped(500.0, 1, LIMIT, LIMIT)
        device.run(WINDOW)
        assert device.budget._load.drafting


def test_loads_are_judged_apart() -> None:
    one, many = Device([0.8], 0.02, 0.05), Device([0.8] * 40, 0.02, 2.0)
    many.budget = one.budget
    for _ in range(10):
        one.run(100)
        many.run(100)
    assert one.run(100) > 1.5
    assert many.run(100) > 0.95


def test_acceptance_forgets() -> None:
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.add(4, 4)
    assert acceptance.rate(0.5) > 0.9
    for _ in range(50):
        acceptance.add(1, 0)
    assert acceptance.rate(0.5) < 0.2
