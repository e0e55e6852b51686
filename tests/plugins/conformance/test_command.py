"""`hotshoe conformance`: exit codes, text and JSON."""

import json
import re
from pathlib import Path

import pytest

from hotshoe.cli.main import main
from hotshoe.cli.parser import Parser
from hotshoe_conformance import command

NARROW = ("conformance", "--platform", "cpu", "--slot", "rms_norm", "--quick", "--seed", "1")


def test_a_platform_that_conforms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(NARROW)) == 0
    out = capsys.readouterr().out
    assert out.startswith("cpu: ")
    assert "seed 1" in out
    assert out.rstrip().endswith("conforms")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NARROW, "--json", "--platform-options.isa", "generic"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["conforms"] is True
    assert document["slots"][0]["verdict"] == "native"
    assert document["slots"][0]["candidates"][0]["passed"] > 10


def test_the_other_process_gets_the_same_options() -> None:
    parser = Parser("hotshoe conformance", "")
    command.Conformance().add_arguments(parser)
    entries = {"fast": True, "part": "0-3", "number": "4", "none": None}
    given = parser.parse(["--seed", "3", "--quick", "--platform-options", json.dumps(entries)])
    again = parser.parse(command.words_of(given))
    assert again == given
    assert again.platform_options == entries


DEADLY = """
import os, sys
from hotshoe.slots import accept
from hotshoe_conformance import kit

def build(spec, facts):
    return lambda x, weight: os.abort()

original = kit.offered

def offered(platform, plugins, facts):
    found = original(platform, plugins, facts)
    candidate = kit.Candidate("rms_norm", "deadly", lambda s, f: accept(0), build)
    return {**found, "rms_norm": [candidate, *found["rms_norm"]]}

kit.offered = offered
"""


def test_a_kernel_that_takes_the_process_down_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DEADLY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(list(NARROW)) == 1
    out = capsys.readouterr().out
    assert "WRONG: the process was killed by SIGABRT" in out
    assert re.search(r"--slot rms_norm --candidate deadly --case \d+ --seed 1", out)


def test_a_kernel_that_never_comes_back_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hanging = DEADLY.replace("os.abort()", "__import__('time').sleep(3600)")
    assert hanging != DEADLY
    (tmp_path / "sitecustomize.py").write_text(hanging)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(command, "HUNG_S", 4.0)
    monkeypatch.setattr(command, "SAY_EVERY_S", 1.0)
    monkeypatch.setattr(command, "LOOK_S", 1.0)
    assert main(list(NARROW)) == 1
    out, err = capsys.readouterr()
    assert "WRONG: one case did not end within 4 s" in out
    assert re.search(r"--slot rms_norm --candidate deadly --case \d+ --seed 1", out)
    assert re.search(r"\d s in one case: .*--candidate deadly", err)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--platform", "cup"), "unknown platform 'cup'; did you mean cpu?"),
        (("--platform", "cpu", "--slot", "norm"), "unknown slot 'norm'"),
        (("--seed", "x"), "--seed"),
    ],
)
def test_mistakes(words: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", *words]) == 2
    assert message in capfd.readouterr().err
