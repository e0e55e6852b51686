"""Which steps are recorded, in which order, and when."""

from types import SimpleNamespace

import pytest
import torch

from hotshoe.layers import Changes
from hotshoe.runner import recording
from hotshoe.runner.graphs import Recordings
from hotshoe.slots import GraphSpec

CPU = torch.device("cpu")


def test_an_operation_may_have_sizes_of_its_own() -> None:
    op = SimpleNamespace()
    assert (
        recording.decode_sizes(op, 40) == (1, 2, 4, 8, 16, 32, 40)
        and recording.decode_sizes(op, 0) == ()
    )
    op.sizes = range(1, 4)
    assert recording.decode_sizes(op, 40) == (1, 2, 3) and recording.decode_sizes(op, 2) == (1, 2)


def test_sizes_of_steps_that_verify_drafts() -> None:
    """Recordings of their own where keys are read once, else those of decode steps up to 64."""
    op, spec = SimpleNamespace(), GraphSpec(40, pieces=True)
    decodes, pieces, shared = recording.sizes_of(op, spec, (2048, 120), 64, True, True)
    assert (decodes[-1], pieces[-1], shared[-1]) == (40, 512, 120)
    decodes, _, shared = recording.sizes_of(op, spec, (2048, 120), 64, True, False)
    assert (decodes[-1], shared) == (64, ())
    assert recording.sizes_of(op, spec, (2048, 40), 64, True, True)[2] == (), "no drafts"
    whole = GraphSpec(40)
    assert recording.sizes_of(op, whole, (2048, 120), 64, True, True)[1:] == ((), ())
    assert recording.sizes_of(op, None, (2048, 120), 64, True, True) == ((), (), ())


class Recorder(recording.Recorder):
    """Notes sizes, and whether these were prepared for adapters."""

    def __init__(self, **given: object) -> None:
        limits = SimpleNamespace(max_num_seqs=8, block_size=1, null_blocks=[0])
        ops = self.note, SimpleNamespace(download=lambda tensors: lambda: None)
        adapters = given.get("adapters")
        ranks = given.get("group"), CPU
        super().__init__(limits, self.stage, ops, adapters, ranks, bool(given.get("every")))
        self.made: list[int] = []

    def stage(self, inputs):
        return len(inputs.rows), True

    def note(self, function):
        self.made.append(size := int(function()))
        return lambda: torch.full((1,), float(size))

    def begin(self, sizes: tuple[int, ...]) -> Recordings:
        found = Recordings(sizes)
        self.decodes(found, Changes.NOTHING, lambda staged: staged)
        return found


def test_the_largest_comes_first_then_the_smallest_and_others_when_wanted() -> None:
    recorder = Recorder()
    recordings = recorder.begin((1, 2, 4, 8))
    assert recorder.made == [8, 1]
    assert [recordings.size_for(n) for n in (1, 2, 3, 8, 9)] == [1, 2, 4, 8, None]
    for _ in range(2):
        assert recordings.ready(3) == 4
        assert recordings.replay(4) == 4
    assert recorder.made == [8, 1, 4]


def test_a_size_for_which_memory_is_lacking_is_padded_to_the_next(caplog) -> None:
    recorder = Recorder()
    recordings = recorder.begin((1, 2, 4, 8))
    lacking = [2]

    def note(function):
        if int(function()) in lacking:
            raise torch.OutOfMemoryError
        return lambda: torch.zeros(1)

    recorder._record = note
    assert [recordings.ready(n) for n in (1, 2, 2, 3, 9)] == [1, 4, 4, 4, None]
    assert caplog.text.count("no memory is left to record steps of 2 decoding requests") == 1
    lacking.append(16)
    with pytest.raises(torch.OutOfMemoryError):  # which a start tells
        recorder.begin((1, 16))


def test_ranks_do_not_go_on_without_a_recording() -> None:
    recorder = Recorder(group=SimpleNamespace(all_reduce=lambda own: own))
    note = recorder._record

    def lack(function):
        if function() == 2:
            raise torch.OutOfMemoryError
        return note(function)

    recorder._record = lack
    with pytest.raises(torch.OutOfMemoryError):
        recorder.begin((1, 2, 4))
    assert recorder.made == [4, 1]


def test_one_size_or_none() -> None:
    recorder = Recorder()
    assert recorder.begin((4,)).size_for(3) == 4
    assert recorder.begin(()).size_for(1) is None
    assert recorder.made == [4]


def test_all_are_recorded_at_once_if_asked_for_with_adapters_and_with_several_ranks() -> None:
    adapters = SimpleNamespace(record=lambda sizes, changes: seen.append((*sizes, changes)))
    seen: list[tuple[int, Changes]] = []
    group = SimpleNamespace(all_reduce=lambda own: own)
    for given in ({"every": True}, {"group": group}, {"adapters": adapters}):
        recorder = Recorder(**given)
        recorder.begin((1, 2, 4, 8))
        assert recorder.made == [8, 1, 4, 2]
    assert seen == [(size, Changes.NOTHING) for size in recorder.made]


def test_a_slow_device_records_few(monkeypatch, caplog) -> None:
    monkeypatch.setattr(recording, "RECORDING_S", -1.0)
    recorder = Recorder(every=True)
    recordings = recorder.begin((1, 2, 4, 8, 16))
    assert recorder.made == [16, 1, 1]
    assert [recordings.size_for(n) for n in (1, 16, 17)] == [16, 16, None]
    assert "those of fewer than 16 decoding requests are padded" in caplog.text


def test_one_slow_recording_says_nothing(monkeypatch) -> None:
    times = iter([0.0, 9.0, 9.0, 9.1])
    monkeypatch.setattr(recording.time, "monotonic", lambda: next(times))
    recorder = Recorder()
    assert recorder.begin((1, 2, 4, 8)).size_for(3) == 4
    assert recorder.made == [8, 1, 1], "kernels are there the second time"


@pytest.mark.parametrize("slow", [0.0, 1.0])
def test_ranks_agree(slow: float) -> None:
    group = SimpleNamespace(all_reduce=lambda own: own + slow)
    assert Recorder(group=group).begin((1, 2, 4)).size_for(2) == (4 if slow else 2)
