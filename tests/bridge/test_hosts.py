"""The table of what reaches which host: whole, printed, and the page's."""

import json
from pathlib import Path

import pytest

from hotshoe.slots import SLOTS
from hotshoe_bridge.__main__ import main
from hotshoe_bridge.hosts import HOSTS, NO, PROVED, REACH, reach


def test_every_slot_and_host_has_an_answer() -> None:
    assert set(REACH) == set(SLOTS)
    assert set(PROVED) == set(HOSTS)
    for slot in SLOTS:
        for host in HOSTS:
            assert reach(slot, host).removeprefix(NO)
    assert reach("a plugin's", "vllm") == f"{NO}not written yet"


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--platform", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "out-of-tree class of `SiluAndMul`" in text
    assert "the host chooses tokens" in text
    assert "not run with that engine" in text
    assert main(["--platform", "cpu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["slots"]["rms_norm"]["candidates"] == ["native"]
    assert set(document["proved"]) == set(HOSTS)
    assert main(["--platform", "no-such"]) == 2
    assert "unknown platform" in capsys.readouterr().err


def test_the_page_says_the_same() -> None:
    page = (
        Path(__file__).resolve().parents[2] / "docs/how-to/bridge-to-other-engines.md"
    ).read_text()
    for slot in SLOTS:
        for host in HOSTS:
            answer = reach(slot, host)
            assert answer.removeprefix(NO) in page, (slot, host)
