"""What a machine can prove follows from declarations and from what is installed."""

import json

import pytest

from hotshoe.cli.main import main
from hotshoe.platform import Absent, DeviceFacts, Proof, Target
from hotshoe_conformance.matrix import NOTHING, Line, as_text, matrix


def target(name: str, arch: str, *proofs: Proof, requires: frozenset[str] = frozenset()) -> Target:
    facts = DeviceFacts("mine", "dev", name, arch, 1, 1, requires)
    return Target(name, facts, requires, f"--platform-options.part {name}", proofs)


COMPILED = Proof("cross-compiled", "make compile", modules=("json",), executables=("sh",))
LACKING = Proof("simulated", "make simulate", modules=("no_such_module",), executables=("no-sh",))
TARGETS = (
    target("here", "any"),
    target("elsewhere", "v9", COMPILED, LACKING),
    target("lost", "v8", LACKING),
    target("other features", "any", requires=frozenset({"wide"})),
)


def lines(plugins) -> list[Line]:
    return [line for line in matrix(plugins) if line.platform == "mine"]


def test_targets_of_a_platform_that_is_here(installed) -> None:
    found = {line.target: (line.proof, line.how) for line in lines(installed(targets=TARGETS))}
    here = "hotshoe conformance --platform mine --platform-options.part here"
    assert found["here"] == ("run", here)
    assert found["elsewhere"] == ("cross-compiled", "make compile")
    proof, missing = found["lost"]
    assert proof == NOTHING
    assert "simulated needs module no_such_module and program no-sh" in missing
    assert found["other features"][0] == NOTHING


def test_targets_of_a_platform_that_is_not_here(installed) -> None:
    plugins = installed(targets=TARGETS[:2], probe=lambda self: Absent("no driver"))
    found = {line.target: (line.proof, line.how) for line in lines(plugins)}
    assert found["here"] == (NOTHING, "no driver")
    assert found["elsewhere"][0] == "cross-compiled"
    [line] = lines(installed(probe=lambda self: Absent("no driver")))
    assert (line.target, line.proof) == ("(declares no target)", NOTHING)


def test_a_device_that_no_target_describes(installed) -> None:
    [line] = lines(installed())
    assert line == Line(
        "mine", "core's references (undeclared)", "run", "hotshoe conformance --platform mine"
    )


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--matrix", "--json"]) == 0
    found = [Line(**line) for line in json.loads(capsys.readouterr().out)]
    assert {line.proof for line in found if line.platform == "cpu"} >= {"run"}
    assert main(["conformance", "--matrix"]) == 0
    assert capsys.readouterr().out.strip() == as_text(found)
