"""Ranks in processes: one answer for all of them, and an end for all when one goes wrong."""

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.processes import is_running

from hotshoe.config import EngineConfig
from hotshoe.engine.ranks import parallel as ranks
from hotshoe.engine.ranks import processes
from hotshoe.engine.ranks.parallel import ParallelWorker
from hotshoe.engine.ranks.processes import ProcessGroup, RankProcess, end_ranks
from hotshoe.engine.ranks.rank_messages import Done, encode
from hotshoe.engine.wire.children import RANKS
from hotshoe.errors import CheckpointError, ConfigError, EngineDeadError, EngineError, RequestError
from hotshoe.plugins import PluginManager
from hotshoe.slots import AttentionSpec, Verdict
from hotshoe.types import NewRow, SamplingParams, StepPlan, StepResult
from hotshoe.types.experts import ExpertCounts

SCRIPT = Path(__file__).parents[1] / "faulty_rank.py"
DIE, RAISE, REFUSE, STICK, BIG, LOSE = 1, 2, 3, 4, 5, 6
EXIT_S = 20.0


def group(leader: int) -> list[int]:
    """Return the processes of a group: a rank, and what it has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[2]) == leader:
                found.append(int(path.parent.name))
    return found


def gone(pids: list[int], limit_s: float = EXIT_S) -> bool:
    deadline = time.monotonic() + limit_s
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(is_running, pids))


@pytest.fixture
def open_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable]:
    """Make workers of two counting ranks; at the end, nothing of them is left."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made: list[tuple[ParallelWorker, list[int]]] = []

    def make(load: bool = True, **options: object) -> ParallelWorker:
        overrides = options.pop("overrides", {})
        settings = {"tensor_parallel_size": 2, "max_num_seqs": 8, **options}
        config = EngineConfig(hf_overrides=overrides, **settings)
        command = [sys.executable, str(SCRIPT)]
        worker = ParallelWorker(config, (), [], ProcessGroup(2, command=command))
        if load:
            worker.load()
            made.append((worker, pids(worker)))
        return worker

    yield make
    for worker, numbers in made:
        begin = time.monotonic()
        worker.close()
        assert time.monotonic() - begin < EXIT_S
        assert not any(map(is_running, numbers))
    assert list(tmp_path.iterdir()) == []


def pids(worker: ParallelWorker) -> list[int]:
    return [rank.process.pid for rank in worker._group.ranks]


def plan(number: int, first: int, length: int = 4) -> StepPlan:
    tokens = [first] + [9] * (length - 1)
    row = NewRow(0, tokens, length, 0, [[0]], SamplingParams(temperature=0.5, stop=("x",)), 2**62)
    return StepPlan(number, [row], [0], [length], masks=[b"\xff\x00"], mask_rows=[0])


def compute(worker: ParallelWorker, how: int) -> None:
    """Compute steps until a failure shows; one of another rank than the first may take a while."""
    number, deadline = 0, time.monotonic() + EXIT_S
    while time.monotonic() < deadline:
        worker.execute(plan(number, how)).result()
        number += 1
        time.sleep(0.02)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_ranks_compute_together(open_ranks, asynchronous: bool) -> None:
    worker = open_ranks(enforce_eager=asynchronous)
    worker.allocate_cache([3])
    handles = [worker.execute(plan(0, 0)), worker.execute(StepPlan(1, [], [0], [1]))]
    results = [handle.result() for handle in handles]
    assert [(r.step_id, r.rows, r.tokens) for r in results] == [(0, [0], [[10]]), (1, [0], [[11]])]


def test_what_ranks_found_is_joined(open_ranks) -> None:
    worker = open_ranks(load=False)
    info = worker.load()
    assert info.cache_budget_bytes == 9 << 20  # the least of all
    assert "2 ranks" in info.budget_note
    [decision] = info.decisions
    assert decision.spec == AttentionSpec(4, 2, 8, "float32", "float32", 16, 0.1, window=7)
    assert decision.others == (("slow", Verdict(None, "no")),)
    assert info.report == {"rank": [0, 1], "same": "on all"}
    worker.close()


def test_it_is_said_that_each_rank_quantizes_its_own_part(open_ranks) -> None:
    worker = open_ranks(load=False, quantization="int8")
    assert "int8 of each rank's part alone" in worker.load().report["quantization"]
    worker.close()


def test_profiles_are_recorded_by_every_rank_between_steps(open_ranks) -> None:
    worker = open_ranks()
    handle = worker.execute(plan(0, 0))
    worker.start_profile("there")
    assert handle.result().tokens == [[10]]
    assert worker.stop_profile() == "there/0, there/1"
    with pytest.raises(RequestError, match="start one first"):
        worker.stop_profile()
    assert worker.execute(plan(1, 0)).result().tokens == [[10]]


def test_large_messages_cross_each_other(open_ranks) -> None:
    """Both directions are full at once, and nobody waits for the other."""
    worker = open_ranks()
    handles = [worker.execute(plan(i, BIG, 400_000)) for i in range(4)]
    assert all(len(handle.result().failed[0]) == 1 << 21 for handle in handles)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        (DIE, EngineDeadError, r"rank {} of 2 was killed \(SIGKILL"),
        (RAISE, EngineError, r"ZeroDivisionError: a bug \(rank {} of 2\)"),
        (REFUSE, RequestError, r"not this one \(rank {} of 2\)"),
    ],
)
def test_a_failure_ends_all_ranks(open_ranks, rank: int, how: int, error, message: str) -> None:
    worker = open_ranks(overrides={"faulty": rank})
    numbers = pids(worker)
    with pytest.raises(error, match=message.format(rank)):
        compute(worker, how)
    assert gone(numbers)
    with pytest.raises(EngineDeadError, match="have been stopped"):
        worker.execute(plan(1, 0))


def test_a_rank_that_does_not_answer_ends_all(open_ranks) -> None:
    worker = open_ranks(overrides={"faulty": 0}, engine_stall_timeout_s=0.5)
    numbers = pids(worker)
    with pytest.raises(EngineDeadError, match=r"no step has come to an end within 0\.5 s"):
        worker.execute(plan(0, STICK)).result()
    assert gone(numbers)


@pytest.mark.parametrize("rank", [0, 1])
def test_killed_from_outside(open_ranks, rank: int) -> None:
    worker = open_ranks()
    numbers = pids(worker)
    os.kill(numbers[rank], signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=f"rank {rank} of 2 was killed"):
        compute(worker, 0)
    assert gone(numbers)


WORK = {
    "offload": (),
    "restore": (),
    "update_weights": ("a-directory",),
    "load_adapter": ("mine", "a-directory"),
}


@pytest.mark.parametrize(("verb", "arguments"), WORK.items())
def test_killed_while_weights_are_moved_or_replaced(open_ranks, verb: str, arguments) -> None:
    worker = open_ranks(overrides={"faulty": 1})
    numbers = pids(worker)
    with pytest.raises(EngineDeadError, match=r"rank 1 of 2 was killed \(SIGKILL"):
        getattr(worker, verb)(*arguments)
    assert gone(numbers)


@pytest.mark.parametrize(
    ("verb", "arguments"), [("offload", ()), ("load_adapter", WORK["load_adapter"])]
)
def test_stopped_while_weights_are_moved_or_replaced(open_ranks, verb: str, arguments) -> None:
    """It is given up and killed like one that hangs, and so are the others."""
    worker = open_ranks(overrides={"faulty": 1, "load_fault": "stop"})
    numbers = pids(worker)
    worker._config = dataclasses.replace(worker._config, load_timeout_s=1)
    with pytest.raises(EngineError, match=r"no answer of rank 1 .* of 2 within 1 s"):
        getattr(worker, verb)(*arguments)
    assert gone(numbers)


def test_a_rank_that_is_stopped_ends_all(open_ranks) -> None:
    """As others wait for it, no step ends."""
    worker = open_ranks(engine_stall_timeout_s=0.5)
    numbers = pids(worker)
    os.kill(numbers[0], signal.SIGSTOP)
    with pytest.raises(EngineDeadError, match=r"no step has come to an end within 0\.5 s"):
        compute(worker, 0)
    assert gone(numbers)


def test_an_adapter_that_some_ranks_refuse_is_on_none(open_ranks) -> None:
    worker = open_ranks()

    def loaded() -> list[str]:
        worker.start_profile("f")
        return [said.partition(" ")[2] for said in worker.stop_profile().split(", ")]

    with pytest.raises(CheckpointError, match=r"^rank 1 of 2 refused adapter 'a': here is no"):
        worker.load_adapter("a", "here")
    assert loaded() == ["", ""]
    worker.load_adapter("a", "there")
    with pytest.raises(CheckpointError, match="rank 1 of 2 refused adapter 'a'"):
        worker.load_adapter("a", "here")
    with pytest.raises(CheckpointError, match=r"^nowhere is no directory$"):
        worker.load_adapter("a", "nowhere")
    assert loaded() == ["a=there"] * 2
    worker.drop_adapter("a")
    assert loaded() == ["", ""]
    assert worker.execute(plan(0, 0)).result().step_id == 0


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("refuse", CheckpointError, r"weights are missing \(rank 1 of 2\)"),
        ("die", EngineDeadError, "rank 1 of 2 was killed by SIGTERM"),
    ],
)
def test_a_failure_while_loading(open_ranks, fault: str, error, message: str) -> None:
    worker = open_ranks(load=False, overrides={"faulty": 1, "load_fault": fault})
    with pytest.raises(error, match=message):
        worker.load()
    worker.close()


def test_who_hangs_while_loading_is_named_and_ends_at_an_interrupt(open_ranks, monkeypatch) -> None:
    """At once, and with what it has started."""
    worker = open_ranks(load=False, overrides={"faulty": 1, "load_fault": "stick"})
    said: list[str] = []
    numbers: list[int] = []

    def listen(text: str, *values: object) -> None:
        said.append(text % values)
        members = [group(pid) for pid in pids(worker)]
        if "rank 0" not in said[-1] and len(members[1]) == 2:
            numbers.extend([*members[0], *members[1]])
            raise KeyboardInterrupt

    monkeypatch.setattr(ranks, "PATIENCE_S", 0.1)
    monkeypatch.setattr(ranks.LOG, "warning", listen)
    with pytest.raises(KeyboardInterrupt):
        worker.load()
    assert said[0].startswith("waiting for rank ")
    assert re.fullmatch(r"waiting for rank 1 \(process \d+\) of 2, [\d.]+ s so far", said[-1])
    assert len(numbers) == 3 and gone(numbers)
    worker.close()


@pytest.mark.parametrize("all_of_them", [False, True])
def test_who_hangs_while_loading_is_given_up(open_ranks, all_of_them: bool) -> None:
    """Also where none is left to notice; named once more, and ended."""
    overrides = {"faulty": "all" if all_of_them else 1, "load_fault": "stick"}
    worker = open_ranks(load=False, overrides=overrides, load_timeout_s=1)
    numbers: list[int] = []
    start = worker._group.start

    def watched(first) -> None:
        start(first)
        numbers.extend(pids(worker))

    worker._group.start = watched
    with pytest.raises(EngineError, match=r"rank 1 \(process \d+\) of 2 within 1 s; .*--load-tim"):
        worker.load()
    assert len(numbers) == 2 and gone(numbers)
    worker.close()


def test_who_cannot_be_killed_is_not_waited_for(tmp_path: Path, monkeypatch) -> None:
    """As a process that waits for storage which has gone."""
    spared: list[int] = []
    monkeypatch.setattr(processes, "TIMES", dataclasses.replace(RANKS, killed_s=0.1))
    monkeypatch.setattr(os, "killpg", lambda pid, number: spared.append(pid))
    rank = RankProcess(0, 1, [sys.executable, "-c", "import time; time.sleep(1000)"])
    end_ranks([rank], str(tmp_path))
    assert spared == [rank.process.pid]
    assert rank.process.poll() is None
    rank.process.kill()
    rank.process.wait()


def test_what_belongs_to_ranks_goes_before_they_do(tmp_path: Path, monkeypatch) -> None:
    """Who is killed while it ends them leaves nothing that only they would have removed."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "rank-0").write_text("1")
    there, kill = [], os.killpg
    rank = RankProcess(0, 1, [sys.executable, "-c", "import time; time.sleep(1000)"])

    def watch(group: int, number: int) -> None:
        there.append(folder.exists())
        kill(group, number)

    monkeypatch.setattr(os, "killpg", watch)
    end_ranks([rank], str(folder))
    assert there == [False]
    assert rank.process.poll() is not None


def test_ranks_that_cannot_all_be_started(open_ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = open_ranks(load=False)
    started: list[int] = []

    def fail_later(rank: int, size: int, command) -> RankProcess:
        if rank == 1:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        made = RankProcess(rank, size, command)
        started.append(made.pid)
        return made

    monkeypatch.setattr(processes, "RankProcess", fail_later)
    with pytest.raises(EngineError, match=r"rank 1 of 2 cannot be started: .*limits on processes"):
        worker.load()
    assert len(started) == 1 and gone(started)
    worker.close()


def test_a_worker_that_is_forgotten_leaves_nothing(open_ranks) -> None:
    worker = open_ranks(load=False)
    worker.load()
    numbers = pids(worker)
    del worker
    assert gone(numbers)


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("STICK", {"hf_overrides": {"faulty": 0}}),
        ("LOSE", {"hf_overrides": {"removal_s": 0.5}, "enforce_eager": True}),
    ],
)
def test_ranks_end_with_their_owner(tmp_path: Path, how: str, options: dict) -> None:
    """Even when it is killed, although one is stuck in a step, or all lose each other's at once."""
    code = f"""
import sys, tempfile
sys.path.insert(0, {str(Path(__file__).parent)!r})
tempfile.tempdir = {str(tmp_path)!r}
from test_parallel import EngineConfig, ParallelWorker, ProcessGroup, plan, pids, {how}
worker = ParallelWorker(
    EngineConfig(tensor_parallel_size=2, **{options}), (), [],
    ProcessGroup(2, command=[sys.executable, {str(SCRIPT)!r}]))
worker.load()
worker.execute(plan(0, {how}))
print(*pids(worker), flush=True)
worker.finish_step()
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    numbers = [int(number) for number in owner.stdout.readline().split()]
    assert len(numbers) == 2
    names = [Path(f"/proc/{number}/comm").read_text().strip() for number in numbers]
    assert names == ["hotshoe-rank0", "hotshoe-rank1"]
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert gone(numbers)
    assert list(tmp_path.iterdir()) == []


def test_news_of_experts_comes_with_results() -> None:
    news = [None, ExpertCounts(1, 2, 1.5), None]
    results = [StepResult(i, [], [], experts=one) for i, one in enumerate(news)]
    messages = iter([(0, encode(Done(result)))] for result in results)
    group = SimpleNamespace(size=2, receive=lambda timeout_s: next(messages))
    worker = ParallelWorker(EngineConfig(tensor_parallel_size=2), (), [], group)
    assert [worker.finish_step() for _ in news] == results


def test_other_plugins_than_the_owners_are_refused() -> None:
    from hotshoe.engine.ranks.rank import check_plugins

    plugins = PluginManager([])
    check_plugins([], plugins)
    with pytest.raises(ConfigError, match="differ from the engine's: mine"):
        check_plugins([("mine", "1")], plugins)
