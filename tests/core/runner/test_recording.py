"""The order and number of steps that a start records."""

import torch

from hotshoe.runner.graphs import Recordings
from hotshoe.runner.recording import Allowance

CPU = torch.device("cpu")


def kept(allowance: Allowance, sizes: tuple[int, ...]) -> list[int]:
    recordings = Recordings(sizes)
    for size in allowance.sizes(recordings, "requests"):
        recordings.keep(size, lambda: torch.zeros(1))
    return recordings.recorded


def test_all_sizes_are_recorded_while_there_is_time() -> None:
    assert kept(Allowance(60.0, None, CPU), (1, 2, 4)) == [1, 2, 4]
    assert kept(Allowance(60.0, None, CPU), ()) == []


def test_without_time_the_largest_alone_is_recorded(caplog) -> None:
    assert kept(Allowance(0.0, None, CPU), (1, 2, 4)) == [4]
    assert "those of up to 2 requests are padded to 4" in caplog.text
