"""`hotshoe bench startup` on the null platform: real processes, real clocks."""

import json
import sys
from pathlib import Path

import pytest

from hotshoe.cli.bench.startup import measure
from hotshoe.errors import EngineError


def test_results(hotshoe, null, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    counts = ("--num-iters", "1", "--num-iters-warmup", "0")
    ran = hotshoe("bench", "startup", *null, *counts, "--output-json", path)
    assert ran.code == 0
    [one] = json.loads(path.read_text())["iterations"]
    inside = {name: value for name, value in one.items() if name.endswith("(s)")}
    assert sum(inside.values()) == pytest.approx(one["first_token_s"])
    assert one["interpreter and imports (s)"] > 0
    assert "load tokenizer (s)" in one
    assert 5 < one["peak_rss_mib"] < 2000


def test_a_failing_process_passes_its_message_on(hotshoe, null) -> None:
    ran = hotshoe("bench", "startup", *null, "--max-model-len", "65")
    assert ran.code == 2
    assert ran.err.startswith("hotshoe: error: max_model_len 65 exceeds the model's 64")


def test_a_crashing_process_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        measure([sys.executable, "-c", "1 / 0"])


def test_a_process_that_says_much_is_not_stopped_by_it() -> None:
    """More than a pipe holds, before the line that is waited for."""
    report = json.dumps({"startup_s": {}, "generate_s": 0.0})
    code = f"import sys; print('x' * 500_000, file=sys.stderr); print({report!r})"
    assert measure([sys.executable, "-c", code])["first_token_s"] > 0
