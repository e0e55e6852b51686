"""The declared parts are the recorded ones, and an engine can be explained for each."""

import json
from dataclasses import asdict

import pytest
from tests.platforms.rocm.conftest import PARTS, Machine, lds_bytes

from hotshoe.cli.main import main
from hotshoe.platform import Target
from hotshoe_rocm.gpus import gpus
from hotshoe_rocm.targets import TARGETS, describe
from hotshoe_triton.device import ARCHS

FP8 = {
    "gfx90a": "",
    "gfx942": "float8_e4m3fnuz",
    "gfx950": "float8_e4m3fn",
    "gfx1100": "",
    "gfx1151": "",
    "gfx1200": "float8_e4m3fn",
    "gfx1201": "float8_e4m3fn",
}
MATRIX = {"gfx90a": "mfma", "gfx942": "mfma", "gfx950": "mfma", "gfx1100": "wmma"}


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.facts.arch)
def test_a_target_is_what_such_a_machine_says(machine: Machine, target: Target) -> None:
    machine.plug(PARTS[target.facts.arch]).install_amdsmi()
    [gpu] = gpus(machine.root)
    assert describe(gpu, 0) == target.facts
    assert target.name in target.facts.name


@pytest.mark.parametrize("arch", PARTS)
def test_kernels_are_compiled_for_what_the_hardware_has(arch: str) -> None:
    part, known = PARTS[arch], ARCHS[arch]
    assert known.warp_size == part.wave
    assert known.shared_bytes == lds_bytes(part)
    assert known.fp8 == FP8[arch]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.facts.arch)
def test_features_say_it_in_words(target: Target) -> None:
    arch, features = target.facts.arch, target.facts.features
    assert {"bfloat16", f"wave{PARTS[arch].wave}", MATRIX.get(arch, "wmma")} <= features
    formats = {"float8_e4m3fnuz": {"fp8_fnuz"}, "float8_e4m3fn": {"fp8_ocp"}, "": set()}
    assert {f for f in features if f.startswith("fp8")} == formats[FP8[arch]]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.facts.arch)
def test_what_would_run_on_it(target: Target, capsys) -> None:
    arguments = ["explain", "demo", "--platform", "rocm", "--json", "--device-facts", target.name]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    decisions = {d["slot"]: d for d in found["decisions"]}
    assert {slot: d["chosen"] for slot, d in decisions.items()} == {
        "embedding": "triton",
        "linear": "streaming",
        "attention": "triton",
        "rotary_and_cache": "triton",
        "rms_norm": "triton",
        "add_rms_norm": "triton",
        "gated_activation": "triton",
        "gated_mlp": "composed",
        "decoder_layer": "composed",
        "model_step": "composed",
        "sample": "triton",
        "transfer": "pinned",
        "graph": "hip_graph",
    }
    assert found["unbuilt"] == {}


@pytest.mark.parametrize(
    ("arch", "chosen"),
    [("gfx90a", "rounding"), ("gfx942", "streaming"), ("gfx1100", "rounding")],
)
def test_eight_bit_floats_need_hardware_that_has_them(arch, chosen, tmp_path, capsys) -> None:
    [target] = [t for t in TARGETS if t.facts.arch == arch]
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(asdict(target.facts) | {"features": sorted(target.facts.features)}))
    arguments = ["explain", "demo", "--quantization", "fp8", "--json", "--device-facts", str(path)]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    [down] = [
        d
        for d in found["decisions"]
        if d["slot"] == "linear" and d["spec"]["weight"] and d["spec"]["in_features"] == 1024
    ]
    assert down["chosen"] == chosen
    refused = {name: verdict["reason"] for name, verdict in down["others"]}
    if chosen == "rounding":
        assert refused["streaming"] == f"{arch} does not multiply fp8_e4m3"
