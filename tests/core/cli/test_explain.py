"""`hotshoe explain`: decisions, refusals and changes, for people and for programs."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hotshoe.cli.explain import as_json, as_text, read_facts
from hotshoe.config import EngineConfig
from hotshoe.engine.explain.estimate import GroupUse, Need
from hotshoe.engine.explain.explanation import Explanation
from hotshoe.errors import ConfigError
from hotshoe.platform import Change, DeviceFacts, Target
from hotshoe.slots import REFERENCE, Decision, NormSpec, SampleSpec, accept, refuse

EXPLANATION = Explanation(
    EngineConfig(platform="p"),
    DeviceFacts("p", "cpu", "Chip", "v1", 3 << 30, 4, frozenset({"wide", "fast"})),
    (Change("dtype", "float32", "the checkpoint's type"),),
    (
        Decision(
            "rms_norm",
            NormSpec(64, 1e-6, "float32"),
            "native",
            10,
            "fits",
            (("other", refuse("too narrow")), (REFERENCE, accept(0))),
        ),
        Decision("sample", SampleSpec(9), REFERENCE, 0, "", (("native", refuse("too small")),)),
    ),
    (Need("weights", 5 << 20, "as they are"),),
    (12, 1),
    (0.25, 0.75),
    {"OSError: no libvendor": ("rms_norm/native",)},
    {"gated_activation": ("fused serves gated_mlp whole", "candidates: native, reference")},
    caches=(GroupUse("window", 512, (0, 1, 2, 4, 6, 7), 1, 16, 1 << 15, 33, 2, 8),),
    packages=dict.fromkeys(("rms_norm/native", "rms_norm/other"), "some-pack 3.0"),
    numerics=("torch 9", "rms_norm: native"),
)


def test_text_names_choice_and_every_refusal() -> None:
    text = as_text(EXPLANATION)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "demo on p: Chip, v1, 4 compute units",
        "features: fast wide",
        "dtype float32 the checkpoint's type",
        "rms_norm 12 25.0% hidden_size=64 eps=1e-06 dtype=float32 native chosen, score 10: fits",
        "other refused: too narrow",
        "gated_activation was not asked: fused serves gated_mlp whole; candidates: native, "
        "reference",
        "native refused: too small",
        "some-pack 3.0 rms_norm/native, rms_norm/other",
        "weights 5.00 MiB as they are",
        "window of 512 tokens 6 0-2 4 6-7 1 16 tokens, 32768 bytes 33 blocks, 1.03 MiB 2 of 8, "
        "0.26 MiB",
        "references move 75.0% of the bytes of a decode step, and are slow at it",
        "chosen there, but not to be built here: rms_norm/native (OSError: no libvendor)",
        "slot sample runs on its plain reference for vocab_size=9",
    ):
        assert line in lines
    assert "reference score 0" not in lines


def test_json_holds_the_same() -> None:
    document = json.loads(json.dumps(as_json(EXPLANATION)))
    assert document["facts"]["features"] == ["fast", "wide"]
    assert document["changes"][0]["field"] == "dtype"
    first = document["decisions"][0]
    assert first["spec"]["hidden_size"] == 64
    assert first["others"][0] == [
        "other",
        {"score": None, "reason": "too narrow", "defect": False},
    ]
    assert first["layers"] == 12
    assert first["step_share"] == 0.25
    assert document["memory"] == [{"use": "weights", "bytes": 5 << 20, "note": "as they are"}]
    assert document["numerics"]["of"] == ["torch 9", "rms_norm: native"]
    assert document["numerics"]["hash"] in as_text(EXPLANATION)
    assert document["packages"]["rms_norm/other"] == "some-pack 3.0"
    [group] = document["caches"]
    assert (group["layers"], group["wasted_bytes"]) == ([0, 1, 2, 4, 6, 7], 33 * (1 << 15) // 4)
    assert document["unbuilt"] == {"OSError: no libvendor": ["rms_norm/native"]}
    assert document["config"]["platform"] == "p"


def test_the_command(hotshoe, null) -> None:
    ran = hotshoe("explain", *null)
    assert ran.code == 0
    assert "max_model_len" in ran.out
    document = json.loads(hotshoe("explain", *null, "--json").out)
    assert document["facts"]["platform"] == "null"
    assert document["config"]["max_model_len"] == 64


def test_mistakes_are_found_without_a_load(hotshoe, null) -> None:
    ran = hotshoe("explain", *null, "--max-model-len", "65")
    assert ran.code == 2
    assert "exceeds the model's 64" in ran.err


FACTS = DeviceFacts("p", "dev:0", "Chip 9", "v9", 3 << 30, 4, frozenset({"wide"}))


def test_facts_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text(json.dumps({**asdict(FACTS), "features": ["wide"]}))
    assert read_facts(str(path), list) == FACTS


def test_facts_of_a_target() -> None:
    targets = [Target("chip 9", FACTS)]
    assert read_facts("chip 9", lambda: targets) == FACTS
    with pytest.raises(ConfigError, match=r"no target 'chip 8'; did you mean chip 9\?"):
        read_facts("chip 8", lambda: targets)
    assert read_facts("V9", lambda: targets) == FACTS  # the architecture
    targets.append(Target("Chip 10", replace(FACTS, name="Chip 10")))
    assert read_facts("P 9", lambda: targets) == FACTS  # part of one name alone
    for several in ("chip", "v9"):
        with pytest.raises(ConfigError, match=f"'{several}' is each of chip 9, Chip 10; name one"):
            read_facts(several, lambda: targets)
    with pytest.raises(ConfigError, match="the platform declares none"):
        read_facts("chip 8", list)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_bytes": "much"}, "memory_bytes in .* must be int"),
        ({"memory_bytes": True}, "memory_bytes in .* must be int"),
        ({"compute_units": 0}, "compute_units in .* must be positive"),
        ({"features": "wide"}, "features in .* must be list"),
        ({"features": [1]}, "features in .* must be strings"),
        ({"name": None}, "name in .* must be str"),
        ({"archs": "v9"}, r"unknown field 'archs'; did you mean arch\?"),
    ],
)
def test_facts_that_are_none(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "facts.json"
    path.write_text(json.dumps({**asdict(FACTS), "features": [], **change}))
    with pytest.raises(ConfigError, match=message):
        read_facts(str(path), list)


@pytest.mark.parametrize("text", ["[]", "{", "\xff", "[" * 100_000])
def test_files_that_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"facts\.json (is no JSON file|must hold)"):
        read_facts(str(path), list)
