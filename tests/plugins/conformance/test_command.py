"""`hotshoe conformance`: exit codes, text and JSON."""

import json

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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--platform", "cup"), "unknown platform 'cup'; did you mean cpu?"),
        (("--platform", "cpu", "--slot", "norm"), "unknown slot 'norm'"),
        (("--seed", "x"), "--seed"),
        (("--platform", "cpu", "--case", "-1"), "--case must be at least 0"),
    ],
)
def test_mistakes(words: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", *words]) == 2
    assert message in capfd.readouterr().err
