"""The declared parts are those that are found, and an engine can be explained for each."""

import json
from dataclasses import asdict, replace

import pytest
from tests.platforms.xpu.conftest import A770, B580, MAX1550, Machine

from hotshoe.cli.main import main
from hotshoe.platform import Target
from hotshoe_triton.device import INTEL_ARCHS
from hotshoe_xpu import candidates
from hotshoe_xpu.platform import XpuPlatform
from hotshoe_xpu.targets import TARGETS


@pytest.mark.parametrize(
    ("card", "name", "memory_mib", "cores"),
    [
        (MAX1550, "Data Center GPU Max 1550", 65_520, 64),
        (A770, "Arc A770", 15_473, 32),
        (B580, "Arc B580", 12_288, 20),
    ],
)
def test_a_target_is_what_such_a_machine_says(
    machine: Machine, monkeypatch, card, name: str, memory_mib: int, cores: int
) -> None:
    monkeypatch.setattr(candidates, "has_triton", lambda: True)
    [target] = [t for t in TARGETS if t.name == name]
    assert XpuPlatform(machine.plug(card).root).facts() == target.facts
    assert (target.facts.memory_bytes >> 20, target.facts.compute_units) == (memory_mib, cores)


def test_shared_memory_is_what_the_drivers_say() -> None:
    sizes = {name: arch.shared_bytes // 1024 for name, arch in INTEL_ARCHS.items()}
    assert sizes == {"pvc": 128, "dg2": 64, "bmg": 128}


def explained(facts: str, capsys) -> dict[str, str]:
    assert main(["explain", "demo", "--platform", "xpu", "--json", "--device-facts", facts]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unbuilt"] == {}
    return {d["slot"]: d["chosen"] for d in found["decisions"]}


KERNELS = ("embedding", "rotary_and_cache", "rms_norm", "add_rms_norm", "gated_activation")


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_what_would_run_on_it(target: Target, capsys) -> None:
    chosen = explained(target.name, capsys)
    assert {chosen[slot] for slot in (*KERNELS, "sample", "attention")} == {"triton"}
    assert (chosen["linear"], chosen["transfer"]) == ("onednn", "pinned")
    assert chosen["graph"] == "reference"


def test_what_would_run_without_triton(tmp_path, capsys) -> None:
    facts = replace(TARGETS[0].facts, features=TARGETS[0].facts.features - {"triton"})
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(asdict(facts) | {"features": sorted(facts.features)}))
    chosen = explained(str(path), capsys)
    assert {chosen[slot] for slot in (*KERNELS, "sample")} == {"reference"}
    assert (chosen["linear"], chosen["attention"]) == ("onednn", "sdpa")
