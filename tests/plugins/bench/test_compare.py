"""`hotshoe bench compare`."""

import json
from pathlib import Path

import pytest

from hotshoe.cli.main import main
from hotshoe_bench.compare import differences, labels, ratios


def write(path: Path, **value: object) -> Path:
    defaults = {"benchmark": "serve", "workload": {"seed": 1, "input_len": 5}}
    path.write_text(json.dumps({**defaults, **value}))
    return path


def test_side_by_side(tmp_path: Path, capsys) -> None:
    one = write(tmp_path / "one.json", summary={"ttft_ms_p50": 100.0, "num_failed": 0, "a": 1})
    two = write(
        tmp_path / "two.json",
        summary={"ttft_ms_p50": 50.0, "num_failed": 3, "b": 1},
        workload={"seed": 2, "input_len": 6},
    )
    assert main(["bench", "compare", str(one), str(two)]) == 0
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["one", "two", "ratio"]
    assert ["ttft_ms_p50", "100.0", "50.000", "0.500"] in lines
    assert ["num_failed", "0", "3", "-"] in lines
    assert len(lines) == 4
    assert err == "workload: input_len is 5 and 6\n"


def test_files_of_the_other_benchmarks(tmp_path: Path, capsys) -> None:
    paths = [write(tmp_path / n, benchmark="latency", median={"x": 2.0}) for n in ("a", "b")]
    assert main(["bench", "compare", *map(str, paths)]) == 0
    assert "1.000" in capsys.readouterr().out


def test_files_of_one_name_are_told_apart() -> None:
    assert labels([Path("x/one.json"), Path("x/two.json")]) == ["one", "two"]
    assert labels([Path("x/one.json"), Path("y/one.json")]) == ["x/one.json", "y/one.json"]


def test_results_of_different_loads(tmp_path: Path, capsys) -> None:
    one = write(tmp_path / "a", benchmark="agent", summary={"x@1": 1})
    two = write(tmp_path / "b", benchmark="agent", summary={"x@2": 1})
    assert main(["bench", "compare", str(one), str(two)]) == 2
    assert "no number in common" in capsys.readouterr().err


def test_different_benchmarks(tmp_path: Path, capsys) -> None:
    one = write(tmp_path / "a", summary={"x": 1})
    two = write(tmp_path / "b", benchmark="latency", median={"x": 1})
    assert main(["bench", "compare", str(one), str(two)]) == 2
    assert "of bench serve" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "is no result"),
        ("[]", "is no result"),
        ('{"benchmark": ["serve"], "summary": {"a": 1}}', "is no result"),
        ('{"benchmark": "serve", "summary": [1]}', "is no result"),
        ('{"benchmark": "serve", "summary": {"a": "x"}}', "is no result"),
        ('{"benchmark": "serve", "summary": {"a": null}}', "is no result"),
        ('{"benchmark": "serve", "summary": {"a": 1}, "workload": [1]}', "is no result"),
        ("{", "cannot read"),
        ("[" * 100_000, "cannot read"),
    ],
)
def test_other_files(tmp_path: Path, capsys, text: str, message: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    assert main(["bench", "compare", str(path), str(path)]) == 2
    assert message in capsys.readouterr().err


def test_ratios_and_differences() -> None:
    assert ratios({"a": 2.0, "b": 1.0}, {"a": 3.0}) == [("a", 2.0, 3.0, "1.500")]
    assert differences({"server": {"model": "x"}}, {}) == ["server: model is x and None"]
