"""`hotshoe bench throughput` on the null platform."""

import json
from pathlib import Path

import pytest


def test_results(hotshoe, null, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    sizes = ("--input-len", "6", "--output-len", "4", "--num-prompts", "5", "--num-iters", "2")
    ran = hotshoe("bench", "throughput", *null, *sizes, "--output-json", path)
    assert ran.code == 0
    assert "tokens_per_s" in ran.out
    for one in json.loads(path.read_text())["iterations"]:
        assert one["requests_per_s"] * one["total_s"] == pytest.approx(5)
        assert one["output_tokens_per_s"] * one["total_s"] == pytest.approx(20)
        assert one["tokens_per_s"] * one["total_s"] == pytest.approx(50)
