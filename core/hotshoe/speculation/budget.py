"""How many drafts each sequence gets, so that drafts never cost more than they bring.

Nothing is known of the device beforehand. Steps are timed with drafts and without, apart for each
number of running sequences. Where drafts do not pay, none are made, and ever more rarely tried.
Where they pay, their measured price and a sequence's own acceptance say how many it gets.
Standard library only.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

#: Steps that are timed before anything is decided, and of a first look at drafts.
WINDOW = 8
#: A first look ends after so many steps where drafts yield less than this share of steps without.
GLANCES = {2: 0.6, 3: 0.9}
#: Drafts of a step while they are tried: at least so many, and of each sequence at first half of
#: one. A step may cost more by having any at all, so more are tried where few did nearly pay
#: (CLOSE) and were LIKELY to be right.
TRIAL_DRAFTS = 4
REACHES = (0.5, 1, 3)
CLOSE, LIKELY = 0.75, 0.4
#: Steps with drafts until a few without are timed again: at most, and where both are about equal.
STAY, SHORT_STAY = 256, 48
ABOUT_EQUAL = 1.5
#: Steps without drafts until they are tried again: at first, by what it grows, and at most.
FIRST_WAIT, WAIT_GROWTH, LAST_WAIT = 64, 4, 1024
#: The share of the time that looks at drafts may cost; a larger loss waits longer.
LOOKS_SHARE = 0.01
#: Steps after a change that are not timed: they were planned before it.
SETTLING = 2
#: What drafts have to gain: with less, noise would often let those go on that lose.
LEAST_GAIN = 1.04
#: Price of a draft in tokens, before it is known, and its bounds.
FIRST_PRICE, LEAST_PRICE, MOST_PRICE = 0.1, 0.02, 0.95
#: A step that took longer than so many usual ones was disturbed.
OUTLIER = 3.0


@dataclass(slots=True)
class Acceptance:
    """How often drafts are right, of late.

    Args:
        keep: What is left of an older step's weight with each new one.
    """

    keep: float = 0.9
    hits: float = 0.0
    misses: float = 0.0

    def add(self, num_drafts: int, num_accepted: int) -> None:
        """Count one verification; behind the first wrong draft nothing was tried."""
        self.hits = self.hits * self.keep + num_accepted
        self.misses = self.misses * self.keep + (num_accepted < num_drafts)

    def rate(self, prior: float) -> float:
        """Return the probability that the next draft is right; `prior` counts as two drafts."""
        return (self.hits + 2 * prior) / (self.hits + self.misses + 2)


@dataclass(slots=True)
class Timed:
    """Steps of a window: how long they took, and what they yielded."""

    seconds: list[float] = field(default_factory=list)
    num_rows: int = 0
    num_drafts: int = 0
    num_accepted: int = 0

    def add(self, seconds: float, num_rows: int, num_drafts: int, num_accepted: int) -> None:
        """Count a step."""
        self.seconds.append(seconds)
        self.num_rows += num_rows
        self.num_drafts += num_drafts
        self.num_accepted += num_accepted

    @property
    def total_s(self) -> float:
        """Seconds of all, those of disturbed steps cut."""
        longest = OUTLIER * statistics.median(self.seconds)
        return sum(min(seconds, longest) for seconds in self.seconds)


class Load:
    """What is known of steps at about one number of running sequences.

    Attributes:
        drafting: Whether drafts are made.
        trying: Whether that is still to be judged.
        price: Of a draft, in tokens that the same time yields without drafts.
        reach: Drafts of each sequence while they are tried.
    """

    def __init__(self) -> None:
        self.drafting = self.trying = False
        self.price = FIRST_PRICE
        self.reach, *self._further = REACHES
        self._token_s = 0.0
        self._wait = FIRST_WAIT
        self._left = WINDOW
        self._settling = SETTLING
        self._window = Timed()

    def add(self, seconds: float, num_rows: int, num_drafts: int, num_accepted: int) -> None:
        """Take in a step that only decoded, and decide how to go on."""
        if self._settling or (num_drafts and not self.drafting):
            self._settling = max(self._settling - 1, 0)
            return
        self._left -= 1
        self._window.add(seconds, num_rows, num_drafts, num_accepted)
        steps = len(self._window.seconds)
        if self.drafting and self.trying and steps in GLANCES:
            self._judge(GLANCES[steps])
        elif steps < WINDOW:
            return
        elif self.drafting:
            self._judge(LEAST_GAIN)
        else:
            self._token_s = self._window.total_s / self._window.num_rows
            self._window = Timed()
            if self._left <= 0:
                self._change(drafting=True, steps=STAY)

    def _judge(self, least: float) -> None:
        """Compare a window of drafts, perhaps a part of it, with none."""
        window, num_steps = self._window, len(self._window.seconds)
        # A disturbance makes steps longer, never shorter: of few steps the shortest tells.
        total_s = window.total_s if num_steps >= WINDOW else min(window.seconds) * num_steps
        if window.num_drafts:
            extra = total_s / self._token_s - window.num_rows
            self.price = min(max(extra / window.num_drafts, LEAST_PRICE), MOST_PRICE)
        gain = (window.num_rows + window.num_accepted) * self._token_s / total_s
        if gain < least:
            usual_s = self._token_s * window.num_rows / num_steps
            lost = (1 - gain) * total_s / usual_s * (1 + SETTLING / num_steps)
            again = self._wait > FIRST_WAIT  # a first loss may be a disturbance
            steps = max(self._wait, int(lost / LOOKS_SHARE)) if again else self._wait
            self._change(drafting=False, steps=steps)
            right = window.num_accepted > LIKELY * window.num_drafts
            if self._further and right and gain > CLOSE:
                self.reach = self._further.pop(0)
            else:
                self._wait = min(self._wait * WAIT_GROWTH, LAST_WAIT)
        elif num_steps >= WINDOW:
            self._window, self._wait, self.trying = Timed(), FIRST_WAIT, False
            if gain < ABOUT_EQUAL:
                self._left = min(self._left, SHORT_STAY)
            if self._left <= 0:
                self._change(drafting=False, steps=WINDOW)

    def _change(self, drafting: bool, steps: int) -> None:
        self.drafting = self.trying = drafting
        self._left, self._settling, self._window = steps, SETTLING, Timed()


class Budget:
    """The drafts of all sequences.

    Args:
        limit: Most drafts of a sequence and step.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._loads: dict[int, Load] = {}
        self._load = Load()
        self._room: int | None = None
        self._share = 0
        self._overall = Acceptance(keep=0.99, hits=2.0, misses=1.0)

    def follow(self) -> Acceptance:
        """Start a sequence."""
        return Acceptance()

    def verified(self, sequence: Acceptance, num_drafts: int, num_accepted: int) -> None:
        """Take in what became of a sequence's drafts."""
        for acceptance in (sequence, self._overall):
            acceptance.add(num_drafts, num_accepted)

    def at(self, num_running: int) -> None:
        """Say how many sequences run now; for what follows, until the next call."""
        key = _class_of(num_running)
        load = self._load = self._loads.get(key) or self._loads.setdefault(key, Load())
        self._room = max(TRIAL_DRAFTS, int(num_running * load.reach)) if load.trying else None
        # Many of one sequence would cost a long chain, of which all the others have nothing.
        self._share = max(1, (self._room or 0) // max(num_running, 1))

    def stepped(self, seconds: float, num_rows: int, num_drafts: int, num_accepted: int) -> None:
        """Take in a step that only decoded.

        Args:
            seconds: Since the end of the step before.
            num_rows: Sequences of the step, each of which computed one token beside its drafts.
            num_drafts, num_accepted: Drafts that were verified, and those that were right.
        """
        self._load.add(seconds, num_rows, num_drafts, num_accepted)

    @property
    def drafting(self) -> bool:
        """Whether any drafts are made."""
        return self._load.drafting

    def limit(self, sequence: Acceptance) -> int:
        """Return most drafts of a sequence; the last one is still likely to be worth its price."""
        load = self._load
        if not load.drafting:
            return 0
        rate = min(sequence.rate(self._overall.rate(0.5)), 0.999)
        worthy = int(math.log(load.price) / math.log(rate))
        if self._room is None:
            return min(self._limit, worthy)
        # Who seldom was right is asked again whenever drafts are tried.
        granted = min(self._limit, max(worthy, 1), self._room, self._share)
        self._room -= granted
        return granted


def _class_of(num_running: int) -> int:
    """Return a number shared by loads that differ by a fifth at most."""
    return num_running if num_running < 8 else 8 + round(4 * math.log2(num_running / 8))
