"""`hotshoe bench report`."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from hotshoe.cli.main import main
from hotshoe_bench.page import curves, page, points

SERVE = {
    "benchmark": "serve",
    "hotshoe": "1.0",
    "server": {"base_url": "http://<b>"},
    "workload": {"input_len": 5, "seed": 1},
    "summary": {"ttft_ms_p50": 100.0, "num_failed": 0},
    "requests": [{"ttft_ms": 30.0, "e2e_ms": 90.0}, {"ttft_ms": None}, {"ttft_ms": 10.0}],
}
AFTER = {
    **SERVE,
    "workload": {"input_len": 6, "seed": 2},
    "summary": {"ttft_ms_p50": 50.0, "more": 7},
}


def write(path: Path, value: object) -> str:
    path.write_text(json.dumps(value))
    return str(path)


def test_a_page(tmp_path: Path, capsys) -> None:
    out = tmp_path / "page.html"
    files = [write(tmp_path / "one.json", SERVE), write(tmp_path / "two.json", AFTER)]
    assert main(["bench", "report", *files, "--output-html", str(out)]) == 0
    found = out.read_text()
    assert "<tr><td>ttft_ms_p50</td><td>100</td><td>50</td><td>0.500</td></tr>" in found
    assert "<tr><td>num_failed</td><td>0</td><td>–</td><td>–</td></tr>" in found
    assert "<tr><td>more</td><td>–</td><td>7</td><td>–</td></tr>" in found
    assert "workload: input_len is 5 and 6" in found and "seed is" not in found
    assert found.count("<svg") == 2
    assert "http://&lt;b&gt;" in found and "<script" not in found and "<b>" not in found


def test_a_front_of_sessions() -> None:
    summary = {
        "user_tokens_per_s@1": 90.0,
        "output_tokens_per_s@1": 80.0,
        "user_tokens_per_s@4": 50.0,
        "output_tokens_per_s@4": 170.0,
        "user_tokens_per_s@9": 40.0,
        **{f"ttft_ms_p{p}@4": 1.5 + p for p in (50, 90, 99)},
    }
    assert [tuple(point) for point in points(summary)] == [(1, 90.0, 80.0), (4, 50.0, 170.0)]
    found = page(["a"], [{"benchmark": "agent", "summary": summary}])
    assert "On the Pareto front: 1, 4 sessions" in found and "<h2>a</h2>" in found
    assert "<td>51.5 / 91.5 / 100.5</td>" in found and "<th>tokens/s of a user</th>" in found


def test_a_curve_ends_with_all_requests_at_the_slowest() -> None:
    drawn = ET.fromstring(curves(["a & b", "none"], [[1.0, 2.0, 4.0], []], "ms"))
    first, second = drawn.iter("{http://www.w3.org/2000/svg}polyline")
    x, y = map(float, first.attrib["points"].split()[-1].split(","))
    assert (x, y) == (656.0, 64.0)
    assert second.attrib["points"] == ""


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([SERVE, {"benchmark": "latency", "median": {"x": 1}}], "of bench latency and serve"),
        ([SERVE] * 7, "at most 6"),
        ([{"benchmark": "serve"}], "is no result"),
    ],
)
def test_other_results(tmp_path: Path, capsys, results: list[object], message: str) -> None:
    files = [write(tmp_path / f"{i}.json", value) for i, value in enumerate(results)]
    out = tmp_path / "page.html"
    assert main(["bench", "report", *files, "--output-html", str(out)]) == 2
    assert message in capsys.readouterr().err and not out.exists()


def test_a_page_that_cannot_be_written(tmp_path: Path, capsys) -> None:
    file = write(tmp_path / "one.json", SERVE)
    assert main(["bench", "report", file, "--output-html", str(tmp_path)]) == 2
    assert "cannot write" in capsys.readouterr().err
