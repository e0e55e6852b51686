"""One rank of a group under test: its side of every case, and the process that it is.

Started by `ranks` alone, which sends the job and receives an answer for each case. A rank that
fails leaves at once, so that the others notice instead of waiting.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hotshoe.engine.wire.children import channel_to_owner, when_orphaned
from hotshoe.errors import EngineError
from hotshoe.foreign import ForeignError, foreign
from hotshoe.lazy import resolve_lazy
from hotshoe.platform import DeviceFacts
from hotshoe.plugins import PluginManager
from hotshoe.plugins.platforms import choose_platform
from hotshoe.slots import Candidate, CommunicatorSpec, Rendezvous
from hotshoe_conformance.cases.base import Case, cases
from hotshoe_conformance.cases.communicator import (
    DIES,
    ENDINGS,
    SHORT_S,
    STAYS_AWAY,
    SUITE,
    TIMEOUT_S,
)
from hotshoe_conformance.judge import call_twice, cause
from hotshoe_conformance.place import Place
from hotshoe_conformance.subject import offered, resolved

#: How much later than promised an error may come, on a machine with other things to do.
LATE_S = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one rank says of one case.

    Attributes:
        bits: A digest of the result, where all ranks must have the same; empty elsewhere.
        over: The call raised, and this rank has left.
    """

    case: int
    defect: str = ""
    error: float = 0.0
    bits: str = ""
    over: bool = False


@dataclass(slots=True)
class Member:
    """One rank. `directory` is the same for all of a group, and empty at first.

    Attributes:
        patient: Errors may come from the device, at a time and in words of its own.
    """

    candidate: Candidate
    spec: CommunicatorSpec
    facts: DeviceFacts
    rank: int
    directory: Path
    patient: bool = False
    _op: Any = None

    def answer(self, case: Case, poison: bool = True) -> Answer:
        """Do this rank's part of a case."""
        try:
            with foreign():
                return self._take(case, poison)
        except ForeignError as failed:
            self.close()
            return Answer(case.index, f"rank {self.rank} raises {cause(failed)}", over=True)

    def _take(self, case: Case, poison: bool) -> Answer:
        if case.setup.shape.verb in ENDINGS:
            return Answer(case.index, self._end(case.setup.shape.verb))
        if self._op is None:
            self._op = self._meet("group", TIMEOUT_S)
        problem: Any = case.problem(SUITE)
        problem = replace(problem, rank=self.rank)
        place = Place(self.facts.device)
        outcome, found = call_twice(self._op, problem, problem.expected(), place, poison)
        bits = ""
        if problem.same_everywhere:
            raw = found["y"].contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            bits = hashlib.sha256(raw).hexdigest()
        return Answer(case.index, outcome.defect, outcome.error, bits)

    def close(self) -> None:
        """Leave the group."""
        if self._op is not None:
            self._op.close()
            self._op = None

    def _meet(self, name: str, timeout_s: float) -> Any:
        folder = self.directory / name
        folder.mkdir(exist_ok=True)
        op = resolve_lazy(self.candidate.build)(self.spec, self.facts)
        op.open(Rendezvous(str(folder), self.rank, self.spec.size, timeout_s))
        if (op.rank, op.size) != (self.rank, self.spec.size):
            raise AssertionError(f"it says rank {op.rank} of {op.size}")
        return op

    def _end(self, verb: str) -> str:
        """End a group that is made for it; return what the survivors get, if that is wrong."""
        last = self.rank == self.spec.size - 1
        if verb == STAYS_AWAY:
            return self._lost(lambda: self._meet(verb, SHORT_S)) if self.rank == 0 else ""
        if not last:
            return self._lost(lambda: self._sum(verb, times=2))
        op = self._sum(verb, times=1)
        if verb == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        op.close()
        return ""

    def _sum(self, name: str, times: int) -> Any:
        """Meet and add up."""
        op = self._meet(name, TIMEOUT_S)
        for _ in range(times):
            op.all_reduce(torch.ones(4, device=self.facts.device)).cpu()
        return op

    def _lost(self, call: Callable[[], object]) -> str:
        """Call what cannot succeed; return what is wrong about its end."""
        begin = time.monotonic()
        try:
            with foreign(passing=(EngineError,)):
                call()
        except EngineError:
            pass
        except ForeignError as failed:
            if not self.patient:
                return f"rank {self.rank} gets {cause(failed)}; promised is an EngineError"
        else:
            return f"rank {self.rank} gets a result, though another rank has gone"
        seconds = time.monotonic() - begin
        if seconds <= TIMEOUT_S + LATE_S:
            return ""
        return f"rank {self.rank} gets its error after {seconds:.1f} s of at most {TIMEOUT_S:g}"


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is told: which rank of which group it is, and which cases it takes part in."""

    platform: str
    platform_options: dict[str, Any]
    candidate: str
    seed: int
    size: int = 0
    rank: int = 0
    cases: tuple[int, ...] = ()
    directory: str = ""


def main() -> None:
    """Receive the job from the owner and answer case after case."""
    owner = channel_to_owner()
    job = Job(**json.loads(owner.fetch() or sys.exit(1)))
    when_orphaned(owner, lambda: os._exit(1))
    plugins = PluginManager()
    platform = choose_platform(plugins, job.platform)
    config = resolved(platform, job.platform_options, job.rank, job.size)
    facts = platform.facts()
    by_slot = offered(platform, plugins, facts)
    platform.activate(config)
    [candidate] = [c for c in by_slot[SUITE.slot] if c.name == job.candidate]
    spec = CommunicatorSpec(job.size)
    member = Member(candidate, spec, facts, job.rank, Path(job.directory), platform.asynchronous)
    known = {case.index: case for case in cases(SUITE, (), job.seed, {*job.cases})}
    with torch.inference_mode():
        for index in job.cases:
            answer = member.answer(known[index])
            owner.send(json.dumps(asdict(answer)).encode())
            owner.drain()
            if answer.over:
                break
        member.close()


if __name__ == "__main__":
    main()
