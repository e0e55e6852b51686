"""`hotshoe explain`: decisions, refusals and changes, for people and for programs."""

import json

from hotshoe.cli.explain import as_json, as_text
from hotshoe.config import EngineConfig
from hotshoe.engine.explain import Explanation
from hotshoe.platform import Change, DeviceFacts
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
    {"weights": 5 << 20},
)


def test_text_names_choice_and_every_refusal() -> None:
    text = as_text(EXPLANATION)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "demo on p: Chip, v1, 4 compute units",
        "features: fast wide",
        "dtype float32 the checkpoint's type",
        "rms_norm hidden_size=64 eps=1e-06 dtype=float32 native chosen, score 10: fits",
        "other refused: too narrow",
        "native refused: too small",
        "weights 5.00 MiB",
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
    assert document["memory_bytes"] == {"weights": 5 << 20}
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
