"""Runs communicator cases on ranks that are processes, and makes one outcome of their answers.

A group of processes serves one candidate for as long as it is well; after a failure the remaining
cases get a new one. Nothing is waited for without end.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace

from hotshoe.engine.ranks.processes import ProcessGroup
from hotshoe.engine.wire.children import Times
from hotshoe.errors import EngineError
from hotshoe.executor import Seat
from hotshoe_conformance.cases.base import Case
from hotshoe_conformance.cases.communicator import DIES, ENDINGS, LOSSES, TIMEOUT_S
from hotshoe_conformance.judge import Outcome
from hotshoe_conformance.rank import LATE_S, Answer, Job

COMMAND = (sys.executable, "-m", "hotshoe_conformance.rank")
#: Processes have so long to come up and meet, and from then on for each case.
TIMES = Times(start_s=120.0, silent_s=2 * TIMEOUT_S + 2 * LATE_S)
#: The first sign of a failure is often an effect; for so long the cause may still show.
GRACE_S = 1.0


class Group:
    """A group of processes at work.

    Args:
        job: What rank 0 is told; the others differ in their rank alone.
        patient: A device's own error may end a rank that has lost another one, and leaves
            nothing to go on with where it does not.
    """

    def __init__(self, job: Job, patient: bool) -> None:
        self._job = job
        self._patient = patient
        self._answers: dict[int, dict[int, Answer]] = {}
        self._gone: set[int] = set()
        self._ranks = ProcessGroup(job.size, command=COMMAND)
        self._ranks.start(self._job_of)

    def _job_of(self, seat: Seat) -> bytes:
        job = replace(self._job, rank=seat.rank, directory=seat.directory)
        return json.dumps(asdict(job)).encode()

    def close(self) -> None:
        """End the processes, by force where they run."""
        self._ranks.stop()

    def outcomes(self, cases: Sequence[Case], begin: Callable[[Case], None]) -> Iterator[Outcome]:
        """Yield an outcome for each case, in their order, up to the first that ends the group."""
        for case in cases:
            self._answers[case.index] = {}
        patience_s = TIMES.start_s
        for case in cases:
            verb = case.setup.shape.verb
            begin(case)
            defect = self._gather(case.index, verb, patience_s)
            patience_s = TIMES.silent_s
            answers = self._answers[case.index]
            yield joined([answers[rank] for rank in sorted(answers)], defect)
            spoilt = verb == DIES or (self._patient and verb in LOSSES)
            if defect or spoilt or any(answer.over for answer in answers.values()):
                return

    def _gather(self, index: int, verb: str, patience_s: float) -> str:
        """Wait for the answers to a case; return why they cannot come.

        The last rank is the one that dies or leaves; who dies does not answer.
        """
        answers, last = self._answers[index], self._job.size - 1
        needed = set(range(self._job.size - (verb == DIES)))
        deadline = time.monotonic() + patience_s
        while missing := needed - answers.keys():
            if gone := missing & self._gone:
                allowed = self._patient and verb in LOSSES and last not in gone
                return "" if allowed else self._ending(min(gone))
            news = self._ranks.receive(deadline - time.monotonic())
            if not news and time.monotonic() >= deadline:
                over = any(answer.over for answer in answers.values())
                late = f"no answer of rank {min(missing)} within {patience_s:g} s"
                return "" if over else late
            for rank, message in news:
                if message is None:
                    self._gone.add(rank)
                    continue
                answer = Answer(**json.loads(message))
                self._answers[answer.case][rank] = answer
                if answer.over:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        return ""

    def _ending(self, rank: int) -> str:
        return f"rank {rank} {self._ranks.ending(rank)}; what it wrote is above"


def joined(answers: Sequence[Answer], defect: str = "") -> Outcome:
    """Make one outcome of what the ranks say. That another rank was lost is never the cause."""
    defects = [answer.defect for answer in answers if answer.defect]
    defects.sort(key=lambda text: EngineError.__name__ in text)
    if not defects and len({answer.bits for answer in answers}) > 1:
        defects = ["the ranks do not all have the same bits"]
    error = max((answer.error for answer in answers), default=0.0)
    return Outcome(defect=defect or next(iter(defects), ""), error=error)


def group_outcomes(
    job: Job,
    cases: Sequence[Case],
    patient: bool,
    max_defects: int,
    hindrance: Callable[[int], str] = lambda size: "",
    begin: Callable[[Case], None] = lambda case: None,
) -> Iterator[tuple[Case, Outcome]]:
    """Run cases in groups of the sizes that they are for; stop after some defects.

    Args:
        patient: As for `rank.Member`.
        hindrance: Why no more cases of a size can be run, empty if they can; asked before each.
        begin: Is told of each case before it is waited for.
    """
    by_size: dict[int, list[Case]] = {}
    for case in sorted(cases, key=lambda case: case.setup.shape.verb in ENDINGS):
        by_size.setdefault(case.setup.spec.size, []).append(case)
    for size, waiting in by_size.items():
        while waiting and max_defects > 0 and not hindrance(size):
            indices = tuple(case.index for case in waiting)
            with closing(Group(replace(job, size=size, cases=indices), patient)) as group:
                for outcome in group.outcomes(list(waiting), begin):
                    yield waiting.pop(0), outcome
                    max_defects -= bool(outcome.defect)
                    if max_defects <= 0 or hindrance(size):
                        break
        if max_defects > 0:
            for case in waiting:
                yield case, Outcome(left_out=hindrance(size))
