"""What is printed and written."""

from argparse import Namespace
from pathlib import Path

from hotshoe_bench.record import Record
from hotshoe_bench.report import document, render
from hotshoe_bench.summary import Failure, summarize

RECORD = Record(5, 3, 0.0, 1.0, 0.1, ttft_ms=10.0, e2e_ms=30.0, tpot_ms=10.0, itl_ms=[9.0, 11.0])


def test_tables() -> None:
    text = render(summarize([RECORD], {"ttft": 50.0}), {"HTTP 429": Failure(2, "busy")})
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "time to first token 10.000 10.000 10.000 10.000" in lines
    assert "inter-token latency 10.000 10.000 10.800 10.980" in lines
    assert "requests completed 1" in lines
    assert "goodput: share of all requests 1.000" in lines
    assert "2 HTTP 429 busy" in lines


def test_tables_leave_out_what_is_not_there() -> None:
    alone = Record(5, 1, 0.0, 1.0, 0.1, ttft_ms=10.0, e2e_ms=10.0)
    text = render(summarize([alone], {}), {})
    assert "per output token" not in text
    assert "goodput" not in text
    assert "cause" not in text


def test_document() -> None:
    args = Namespace(seed=4, conversations=Path("c.json"), api_key_file=Path("k"), model="m")
    numbers = summarize([RECORD], {})
    written = document(args, {"model": "m"}, numbers, {"timeout": Failure(1, "x")}, [RECORD])
    assert written["workload"] == {"seed": 4, "conversations": "c.json"}
    assert written["summary"] == numbers
    assert written["failures"] == {"timeout": {"count": 1, "example": "x"}}
    assert written["requests"][0]["ttft_ms"] == 10.0
    assert "itl_ms" not in written["requests"][0]
