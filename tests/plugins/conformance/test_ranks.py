"""Groups of processes, with processes that only play a part; and one that is real."""

import sys
from dataclasses import replace

import pytest

from hotshoe.slots import CommunicatorSpec
from hotshoe_conformance import ranks
from hotshoe_conformance.cases.base import Case, Setup
from hotshoe_conformance.cases.communicator import DIES, LEAVES, Exchange
from hotshoe_conformance.kit import Kit, Options
from hotshoe_conformance.rank import Answer
from hotshoe_conformance.ranks import Job, group_outcomes, joined

JOB = Job("cpu", {}, "mine", size=2, seed=1)
#: Every rank does as its script says, which sees `job` and `say`.
PLAYER = """
import json, os, signal, sys, time
from hotshoe.engine.wire.children import channel_to_owner
owner = channel_to_owner()
job = json.loads(owner.fetch())
def say(case, **fields):
    owner.send(json.dumps({"case": case, **fields}).encode())
for case in job["cases"]:
    {script}
    say(case)
"""


def case(index: int, verb: str = "all_reduce") -> Case:
    return Case("communicator", index, 1, Setup(CommunicatorSpec(2), Exchange(verb)))


@pytest.fixture
def play(monkeypatch):
    """Run three cases with ranks that follow a script; return the defects by case."""

    def play(
        script: str,
        patient: bool = False,
        verb: str = "all_reduce",
        last: str = "all_reduce",
        limit: int = 3,
        **more,
    ):
        command = (sys.executable, "-c", PLAYER.replace("{script}", script))
        monkeypatch.setattr(ranks, "COMMAND", command)
        listed = [case(4), case(5, verb), case(9, last)]
        outcomes = group_outcomes(JOB, listed, patient, limit, **more)
        return [(c.index, o.defect or o.left_out) for c, o in outcomes]

    return play


def test_cases_that_are_well(play) -> None:
    begun = []
    assert play("pass", begin=begun.append) == [(4, ""), (5, ""), (9, "")]
    assert [case.index for case in begun] == [4, 5, 9]  # so who watches knows which one hangs


@pytest.mark.parametrize(
    ("script", "defect"),
    [
        (
            "if job['rank'] and case == 5: os.kill(os.getpid(), 11)",
            "rank 1 was killed by SIGSEGV; what it wrote is above",
        ),
        (
            "if not job['rank'] and case == 5: sys.exit(3)",
            "rank 0 ended with 3; what it wrote is above",
        ),
    ],
)
def test_a_process_that_goes_is_named_and_the_rest_goes_on(play, script, defect) -> None:
    (first, ok), (second, wrong), (third, after) = play(script)
    assert (first, second, third) == (4, 5, 9)
    assert (ok, after) == ("", "")
    assert wrong.startswith(defect)


def test_a_process_that_hangs_is_not_waited_for(play, monkeypatch) -> None:
    monkeypatch.setattr(ranks, "TIMES", replace(ranks.TIMES, silent_s=3.0))
    script = """done = os.path.join(job["directory"], "done")
    if case == 9 and not job["rank"]:
        open(done, "w").close()  # so rank 0 has answered all, however slow it is
    while case == 4 and job["rank"] and not os.path.exists(done):
        time.sleep(0.01)
    if case == 5 and job["rank"]:
        time.sleep(600)"""
    found = play(script)
    assert found == [(4, ""), (5, "no answer of rank 1 within 3 s"), (9, "")]


def test_who_fails_is_named_and_not_who_notices(play) -> None:
    script = """if case == 5:
        text = ["EngineError: rank 0 lost the others", "ValueError: no"][job["rank"]]
        say(case, defect=text, over=True)
        break"""
    assert play(script) == [(4, ""), (5, "ValueError: no"), (9, "")]


def test_after_some_defects_nothing_more_is_learnt(play) -> None:
    assert len(play("sys.exit(1)", limit=2)) == 2


def test_cases_that_something_hinders_are_left_out(play) -> None:
    asked: list[int] = []

    def late(size: int) -> str:
        asked.append(size)
        return "too late" if len(asked) > 2 else ""

    assert play("pass", hindrance=late) == [(4, ""), (5, ""), (9, "too late")]
    assert set(asked) == {2}
    assert play("pass", hindrance=lambda size: "no") == [(4, "no"), (5, "no"), (9, "no")]


def test_a_rank_that_is_to_die(play) -> None:
    dies = "if case == 9 and job['rank']: os.kill(os.getpid(), 9)"
    assert play(dies, last=DIES)[-1] == (9, "")
    both = "if case == 9: os.kill(os.getpid(), 9)"
    assert "rank 0 was killed (SIGKILL" in play(both, last=DIES)[-1][1]
    assert play(both, patient=True, last=DIES)[-1] == (9, "")


def test_who_stays_may_end_by_its_device_when_another_leaves(play) -> None:
    ends = "if case == 5 and not job['rank']: os.kill(os.getpid(), 6)"
    assert play(ends, verb=LEAVES, last=DIES)[1] == (
        5,
        "rank 0 was killed by SIGABRT; what it wrote is above",
    )
    assert play(ends, patient=True, verb=LEAVES) == [(4, ""), (9, ""), (5, "")]
    leaver = "if case == 5 and job['rank']: os.kill(os.getpid(), 6)"
    found = play(leaver, patient=True, verb=LEAVES)
    assert found[-1] == (5, "rank 1 was killed by SIGABRT; what it wrote is above")


def test_a_lost_device_is_not_used_for_the_next_case(play) -> None:
    """A process that serves another case behind a loss says so here."""
    script = """lost = globals().get("lost") or (1 if case == 5 else 0)
    if lost and case != 5:
        say(case, defect="the device is lost", over=True)
        break"""
    assert play(script, patient=True, verb=LEAVES, last=DIES)[-1][1] == ""
    assert play(script, verb=LEAVES, last=DIES)[-1][1] == "the device is lost"


def test_ranks_that_have_other_bits() -> None:
    answers = [Answer(1, bits="a", error=0.5), Answer(1, bits="b", error=0.25)]
    outcome = joined(answers)
    assert outcome.defect == "the ranks do not all have the same bits"
    assert outcome.error == 0.5
    assert joined(answers[:1]).defect == ""


def test_real_processes() -> None:
    [slot] = (
        Kit("cpu", Options(slot="communicator", candidate="reference", case=0, seed=1)).run().slots
    )
    [found] = slot.candidates
    assert (found.passed, found.defects) == (1, [])


def test_a_platform_for_one_device_says_why_nothing_was_run(installed) -> None:
    report = Kit("mine", Options(slot="communicator", quick=True), installed()).run()
    [slot] = report.slots
    assert slot.verdict == "untested"
    [reason] = slot.candidates[0].left_out
    assert reason == (
        "platform mine runs on one device; leave tensor_parallel_size and "
        "pipeline_parallel_size at 1"
    )
    assert f"cases of communicator: {reason}" in report.as_text()
