"""Optimization levels: what an engine records of its steps before it serves, as data.

Nothing else depends on them. Fused operations are slots and kernels are chosen by verdicts at every
level, so a level moves time between start-up and steps, and changes no kernel.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """What is recorded, as far as the device records it.

    Attributes:
        decodes: Requests of the largest step of decoding requests; 0 for none, None for all.
        prompts: Steps that compute prompts are recorded in pieces.
    """

    decodes: int | None
    prompts: bool

    def __str__(self) -> str:
        if self.decodes == 0:
            return "nothing"
        if self.prompts:
            return "all steps"
        return f"decode steps of up to {self.decodes} requests"


#: By number, as vLLM counts them: no optimization, a fast start, the default, everything.
LEVELS = (Level(0, False), Level(8, False), Level(None, True), Level(None, True))
DEFAULT_LEVEL = 2


def levels_text() -> str:
    """Return the table in one line, for a help text."""
    said = [f"{number}: {level}" for number, level in enumerate(LEVELS)]
    return f"steps that are recorded: {'; '.join(said)}"
