"""How findings become a verdict, and how they are printed."""

import json

import pytest

from hotshoe_conformance.report import (
    NATIVE,
    REFERENCE,
    REFUSED,
    WRONG,
    CandidateReport,
    Defect,
    Report,
    Share,
    SlotReport,
)

PASSED = CandidateReport("mine", passed=3, error=0.5)
DECLINED = CandidateReport("mine", refused=3)
BROKEN = CandidateReport(
    "mine", passed=3, defects=[Defect("off", "size=3", "count=2", "hotshoe x")]
)
OURS = CandidateReport("reference", passed=3)


@pytest.mark.parametrize(
    ("candidates", "verdict"),
    [
        ([PASSED, OURS], NATIVE),
        ([DECLINED, PASSED, OURS], NATIVE),
        ([DECLINED, OURS], REFUSED),
        ([OURS], REFERENCE),
        ([PASSED, BROKEN, OURS], WRONG),
        ([PASSED, CandidateReport("reference", defects=[Defect("off")])], WRONG),
    ],
)
def test_verdicts(candidates: list[CandidateReport], verdict: str) -> None:
    assert SlotReport("sample", candidates).verdict == verdict


def test_a_candidate_that_ran_nothing_is_not_proved() -> None:
    """Its results may be anything: here it would return ones, were it ever asked."""
    ones = CandidateReport("ones", refused=9, reasons={"int4 alone": 9})
    alone = CandidateReport("alone", left_out={"one device": 2})
    report = Report("p", "a device", 7, [SlotReport("linear", [ones, alone, PASSED, OURS])])
    why = {
        "linear/ones": "it ran none of 9 cases: int4 alone",
        "linear/alone": "it ran none of 2 cases: one device",
    }
    assert report.as_json()["unproved"] == why
    text = report.as_text()
    for name, reason in why.items():
        assert f"NOT PROVED {name}: {reason}" in text.splitlines()
    assert "conforms, but for what is not proved (linear/ones, linear/alone)" in text
    proved = Report("p", "a device", 7, [SlotReport("linear", [PASSED, BROKEN, OURS])])
    assert proved.unproved == {}
    assert "NOT PROVED" not in proved.as_text()


def test_text() -> None:
    shares = [
        Share("size=64 dtype=a", "count=1", 12.5, "bandwidth", 0.75),
        Share("size=64 dtype=b", "count=9", 2.5, "arithmetic", 1.5),
    ]
    mine = CandidateReport("mine", passed=1, shares=shares)
    checks = {"declarations": [], "tokens": [Defect("token 3 is 9", shape="llama")]}
    slots = [SlotReport("sample", [mine]), SlotReport("linear", [BROKEN])]
    formats = {"--quantization four": "passed: mine"}
    report = Report("p", "a device", 7, slots, checks, {"B/s": 5e9}, 1.25, formats)
    lines = [" ".join(line.split()) for line in report.as_text().splitlines()]
    for line in (
        "p: a device, seed 7, 1.2 s",
        "sample native mine 1 0 0 0.00 of tolerance",
        "declarations passed",
        "tokens wrong",
        "--quantization four passed: mine",
        "limits measured: 5.0 GB/s",
        "sample mine 12.500 75% of bandwidth count=1 dtype=a",
        "sample mine 2.500 over 100% of arithmetic count=9 dtype=b",
        "WRONG tokens: token 3 is 9",
        "WRONG linear/mine: off",
        "specification: size=3",
        "repeat: hotshoe x",
        "does not conform: 2 defects",
    ):
        assert line in lines
    assert report.as_json()["conforms"] is False


def test_what_no_time_was_left_for_is_told_in_both_forms() -> None:
    report = Report("mine", "a device", 1, left_out={"weight formats: the time limit of 5 s": 3})
    document = json.loads(json.dumps(report.as_json()))
    assert document["left_out"] == {"weight formats: the time limit of 5 s": 3}
    assert "left out: 3 weight formats: the time limit of 5 s" in report.as_text()
    assert report.as_text().endswith("conforms, as far as it was run")
