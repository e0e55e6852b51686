"""Counters and histograms, alone and over several processes."""

import mmap
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe_observability.bounds import COUNTS
from hotshoe_observability.counts import Counts
from hotshoe_observability.table import FAILED, NUM_SEQUENCES, REQUESTS, TTFT


def test_counters_by_label() -> None:
    counts = Counts()
    counts.add(REQUESTS, "/v1/completions")
    counts.add(REQUESTS, "/v1/completions")
    counts.add(FAILED, "queue_full")
    assert counts.total(REQUESTS, "/v1/completions") == 2
    assert counts.total(REQUESTS, "/v1/responses") == 0
    assert counts.total(FAILED, "queue_full") == 1


def test_unknown_values_make_no_new_series() -> None:
    counts = Counts()
    for value in ("/made/up", "/another"):
        counts.add(REQUESTS, value)
    assert counts.total(REQUESTS, "other") == 2


@given(st.lists(st.floats(0, 200)))
def test_histograms(numbers: list[float]) -> None:
    counts = Counts()
    for number in numbers:
        counts.observe(NUM_SEQUENCES, number)
    *buckets, total = counts.histogram(NUM_SEQUENCES)
    assert total == pytest.approx(sum(numbers))
    assert sum(buckets) == len(numbers)
    for i, bound in enumerate(COUNTS):
        assert sum(buckets[: i + 1]) == sum(number <= bound for number in numbers)


def test_neighbors_are_left_alone() -> None:
    counts = Counts()
    counts.observe(TTFT, 1e9)
    others = [(name, v) for name, v in Counts.PLACES if name != TTFT.name]
    assert all(counts._own[Counts.PLACES[place]] == 0 for place in others)


def test_processes_share_a_file_and_one_that_is_replaced_goes_on() -> None:
    with tempfile.TemporaryFile() as file:
        first, second = (Counts.shared(file.fileno(), process, 2) for process in range(2))
        first.add(REQUESTS, "/v1/completions")
        second.add(REQUESTS, "/v1/completions")
        again = Counts.shared(file.fileno(), 1, 2)
        again.add(REQUESTS, "/v1/completions")
        for counts in (first, again):
            assert counts.total(REQUESTS, "/v1/completions") == 3


def test_processes_are_added_up() -> None:
    memory = mmap.mmap(-1, Counts.size(3))
    parts = [Counts(memory, process, 3) for process in range(3)]
    for number, part in enumerate(parts):
        part.add(REQUESTS, "/v1/completions")
        part.observe(TTFT, float(number))
    for part in parts:
        assert part.total(REQUESTS, "/v1/completions") == 3
        *buckets, total = part.histogram(TTFT)
        assert (sum(buckets), total) == (3, 3.0)
