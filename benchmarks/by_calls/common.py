"""Stands before the peers' `common.py` of the same name, for `peers.py --by-calls`.

Everything of theirs is here, but each timed call waits for its turn, and rows go to a file of the
engine's own. Knows its place from the environment: $CASES_DIR has the original, $TURN_GO gives
leave for one call, $TURN_DONE hears of its seconds and is asked for the next, $ROWS takes rows.
"""

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Generate = Callable[[list[list[int]], int], tuple[float, int]]

_spec = importlib.util.spec_from_file_location("theirs", Path(os.environ["CASES_DIR"], "common.py"))
assert _spec is not None and _spec.loader is not None
_theirs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_theirs)
globals().update({name: value for name, value in vars(_theirs).items() if name[:2] != "__"})


def emit(engine: str, model: str, case: str, row: dict[str, Any]) -> None:
    """Append one row, as theirs does, to the engine's own file."""
    with Path(os.environ["ROWS"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"engine": engine, "model": model, "case": case, **row}) + "\n")


_theirs.emit = emit


def run_cases(engine: str, model: str, generate: Generate, *args: Any, **options: Any) -> None:
    """Run their cases, each call when it is this engine's turn."""
    done_path, go_path = Path(os.environ["TURN_DONE"]), Path(os.environ["TURN_GO"])
    with done_path.open("w") as done, go_path.open() as go:

        def in_turn(prompts: list[list[int]], num_tokens: int) -> tuple[float, int]:
            done.write("next\n")
            done.flush()
            go.readline()
            seconds, tokens = generate(prompts, num_tokens)
            done.write(f"{len(prompts)} x {len(prompts[0])} / {num_tokens}: {seconds}\n")
            done.flush()
            return seconds, tokens

        _theirs.run_cases(engine, model, in_turn, *args, **options)
