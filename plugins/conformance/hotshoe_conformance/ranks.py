"""Runs communicator cases on ranks that are processes, and makes one outcome of their answers.

A group of processes serves one candidate for as long as it is well; after a failure the remaining
cases get a new one. Nothing is waited for without end.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace

from hotshoe.errors import EngineError
from hotshoe.foreign import ending
from hotshoe_conformance.cases.base import Case
from hotshoe_conformance.cases.communicator import DIES, ENDINGS, LOSSES, TIMEOUT_S
from hotshoe_conformance.judge import Outcome
from hotshoe_conformance.rank import LATE_S, Answer, Job

COMMAND = (sys.executable, "-m", "hotshoe_conformance.rank")
STDERR = 2
#: Processes have so long to come up and meet, and from then on for each case.
START_S, CASE_S = 120.0, 2 * TIMEOUT_S + 2 * LATE_S
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
        self._news: queue.SimpleQueue[tuple[int, Answer | None]] = queue.SimpleQueue()
        self._folder = tempfile.TemporaryDirectory(prefix="hotshoe-ranks-")
        self._processes = [self._start(rank) for rank in range(job.size)]

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        job = replace(self._job, rank=rank, directory=self._folder.name)
        ours, theirs = os.pipe()
        process = subprocess.Popen(
            [*COMMAND, str(theirs), json.dumps(asdict(job))], stdout=STDERR, pass_fds=[theirs]
        )
        os.close(theirs)
        threading.Thread(target=self._listen, args=[rank, ours], daemon=True).start()
        return process

    def _listen(self, rank: int, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8") as lines:
            for line in lines:
                self._news.put((rank, Answer(**json.loads(line))))
        self._news.put((rank, None))

    def close(self) -> None:
        """End the processes, by force where they run."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._folder.cleanup()

    def outcomes(self, cases: Sequence[Case], begin: Callable[[Case], None]) -> Iterator[Outcome]:
        """Yield an outcome for each case, in their order, up to the first that ends the group."""
        for case in cases:
            self._answers[case.index] = {}
        patience_s = START_S
        for case in cases:
            verb = case.setup.shape.verb
            begin(case)
            defect = self._gather(case.index, verb, patience_s)
            patience_s = CASE_S
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
            try:
                rank, answer = self._news.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                if any(answer.over for answer in answers.values()):
                    return ""
                return f"no answer of rank {min(missing)} within {patience_s:g} s"
            if answer is None:
                self._gone.add(rank)
                continue
            self._answers[answer.case][rank] = answer
            if answer.over:
                deadline = min(deadline, time.monotonic() + GRACE_S)
        return ""

    def _ending(self, rank: int) -> str:
        process = self._processes[rank]
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        code = process.returncode
        if code is not None and code < 0:
            return f"rank {rank} was {ending(code)}"
        return f"rank {rank} ended with {code}; its error is above"


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
