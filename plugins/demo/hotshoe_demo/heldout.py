"""The held-out cases and text, none of which the demo model saw in training.

`scoring.py` judges answers; whoever runs a model brings it along.
"""

import json
from typing import Any

from hotshoe_demo import HELD_OUT


def cases(kind: str | None = None) -> list[dict[str, Any]]:
    """Return the cases, all or of one kind.

    Args:
        kind: "addition", "long_addition", "fact", "tool_call", "json", "repeat", "instruction",
            "unknown", "handwritten_call" or "handwritten_fact".

    Returns:
        Dictionaries with `kind`, `messages` and `tools` in the OpenAI form, `expected`, and
        `enable_thinking` where the chat template shall open a thought.
    """
    lines = (HELD_OUT / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return [case for case in found if kind in (None, case["kind"])]


def text() -> str:
    """Return the held-out documentation, about 110,000 characters from many packages."""
    return (HELD_OUT / "text.txt").read_text(encoding="utf-8")
