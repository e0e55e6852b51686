"""What the benchmarks share, on the null platform."""

import json
import random
from argparse import Namespace
from pathlib import Path

import pytest

from hotshoe import LLM
from hotshoe.cli.bench.workload import (
    check_flags,
    fixed_length,
    iterate,
    random_prompts,
    report,
    show_progress,
)
from hotshoe.errors import ConfigError


def namespace(**values: object) -> Namespace:
    defaults = {"num_iters": 3, "num_iters_warmup": 2, "output_json": None}
    return Namespace(**{**defaults, **values})


def test_warm_up_is_not_counted() -> None:
    numbers = iter(range(100))
    assert iterate(namespace(), lambda: {"n": float(next(numbers))}) == [
        {"n": 2.0},
        {"n": 3.0},
        {"n": 4.0},
    ]


def test_prompts_are_fresh_and_of_exact_length(model_dir: Path, plugins) -> None:
    llm = LLM(str(model_dir), platform="null", plugins=plugins)
    args = namespace(input_len=7, num_prompts=4)
    rng = random.Random(0)
    prompts = [*random_prompts(llm, args, rng), *random_prompts(llm, args, rng)]
    assert {len(p.token_ids) for p in prompts} == {7}
    assert len({tuple(p.token_ids) for p in prompts}) == 8


def test_the_length_is_exact(model_dir: Path, plugins) -> None:
    llm = LLM(str(model_dir), platform="null", plugins=plugins)
    # The null platform counts through the end-of-sequence token, 255, of this model.
    prompts = random_prompts(llm, namespace(input_len=1, num_prompts=50), random.Random(1))
    outputs = llm.generate(prompts, fixed_length(13))
    assert {len(output.outputs[0].token_ids) for output in outputs} == {13}


def test_report_prints_medians_and_writes_json(tmp_path: Path, capsys) -> None:
    path = tmp_path / "out.json"
    iterations = [{"total_s": 1.0}, {"total_s": 9.0}, {"total_s": 2.0}]
    report("latency", namespace(output_json=path, input_len=5), {"seed": 0}, iterations)
    assert capsys.readouterr().out.splitlines()[2].split() == ["total_s", "2.000", "1.000", "9.000"]
    written = json.loads(path.read_text())
    assert written["benchmark"] == "latency"
    assert written["median"] == {"total_s": 2.0}
    assert written["iterations"] == iterations
    assert written["workload"] == {"input_len": 5, "num_iters": 3, "num_iters_warmup": 2}
    assert written["engine"] == {"seed": 0}


def test_a_place_for_results_is_looked_for_before_anything_is_measured(tmp_path: Path) -> None:
    check_flags(namespace(output_json=tmp_path / "f"))
    for path in (tmp_path, tmp_path / "no" / "f"):
        with pytest.raises(ConfigError, match="cannot write"):
            check_flags(namespace(output_json=path))


def test_results_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        report("latency", namespace(output_json=tmp_path / "no" / "f"), {}, [{"total_s": 1.0}])


@pytest.mark.parametrize(
    ("terminal", "shown"), [(False, ""), (True, "\r[###############...............] 1/2")]
)
def test_progress_is_for_terminals(monkeypatch, capsys, terminal: bool, shown: str) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    show_progress(1, 2)
    assert capsys.readouterr().err == shown
