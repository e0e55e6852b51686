"""The steps that a worker runs before it serves, and their rehearsal: the same steps in a time in
which the platform only looks at what they call, so that it compiles all that side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from hotshoe.config import ResolvedConfig
from hotshoe.runner.runner import Runner
from hotshoe.slots import Between

#: Mixed steps that run once at start-up: numbers of requests, all but one of which decode, and the
#: tokens of that one.
MIXED_REQS = (1, 2, 20, 80, 256)
MIXED_PROMPT = 100
#: A prompt that every configuration admits.
SMALLEST = [2]


class Unrecorded:
    """Stands for a candidate of slot `graph`: runs what it is to record, once, and keeps nothing,
    as results of all sizes together would count as what a step needs."""

    def record(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return self.record_pieces(lambda between: function())

    def record_pieces(self, function: Callable[[Between], Tensor]) -> Callable[[], Tensor]:
        function(lambda call: call())
        return _nothing


def _nothing() -> Tensor:
    raise AssertionError("nothing was recorded")


def largest_step(config: ResolvedConfig) -> list[int]:
    """Return the lengths of prompts that fill the token budget."""
    full, rest = divmod(config.max_num_batched_tokens, config.max_model_len)
    return ([config.max_model_len] * full + [rest] * (rest > 0))[: config.max_num_seqs]


def mixed_steps(config: ResolvedConfig) -> Iterator[list[int]]:
    """Yield the lengths of mixed steps of several sizes."""
    prompt = min(MIXED_PROMPT, config.max_model_len)
    for num_reqs in MIXED_REQS:
        fits = num_reqs + prompt <= config.max_num_batched_tokens
        if fits and num_reqs <= config.max_num_seqs:
            yield [1] * (num_reqs - 1) + [prompt]


def rehearse(runner: Runner, config: ResolvedConfig, lacks: Callable[[], bool]) -> None:
    """Run the kinds of steps that a start runs, and what later steps record, if something of it all
    may have to be compiled.

    Args:
        runner: With `Unrecorded`, over any cache.
        lacks: From `Rehearsing.rehearsal`.
    """
    for lengths in (largest_step(config), SMALLEST, *mixed_steps(config)):
        runner.warm_up(lengths)
    runner.record_graphs()
    if lacks():
        runner.record_graphs(every=True)
