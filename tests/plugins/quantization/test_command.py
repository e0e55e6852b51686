"""Quantized checkpoints on the command line: answers, and one clear error with exit code 2."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.quantization.writers import Written, awq, eight_bits, fp4, packed, write

import hotshoe_demo
from hotshoe import LLM
from hotshoe.cli.main import main
from hotshoe.errors import CheckpointError
from hotshoe_conformance.checkpoint import write_model
from hotshoe_conformance.host import host_plugins

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
FP8 = {"quant_method": "fp8", "weight_block_size": [32, 32]}
BLOCKS = {"": eight_bits(torch.float8_e4m3fn, "block", scale_name="weight_scale_inv")}
TEXT = "The little dog"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model("llama", tmp_path_factory.mktemp("tiny") / "llama", host_plugins(), 5)


def test_a_checkpoint_answers_as_the_plain_one(tmp_path: Path, capsys) -> None:
    model = Path(hotshoe_demo.__file__).parent / "model"
    found = []
    for path in write(model, tmp_path, Written(AWQ | {"group_size": 128}, {"": awq(128)})):
        for file in model.glob("*token*.json"):
            shutil.copy(file, path)
        options = ["--max-tokens", "8", "--temperature", "0", "--dtype", "float32", "--json"]
        assert main(["generate", str(path), "-p", TEXT, "--platform", "cpu", *options]) == 0
        [request] = json.loads(capsys.readouterr().out)["requests"]
        found.append(request["outputs"])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        (
            {"quant_method": "exl9"},
            (),
            "quant_method of quantization_config is 'exl9', which .*Known are auto-round, awq, ",
        ),
        ({"bits": 4}, (), "quantization_config must be an object with a quant_method"),
        ("awq", (), "quantization_config must be an object"),
        ({"quant_method": "bitsandbytes"}, (), "load_in_4bit and load_in_8bit must be"),
        (AWQ | {"group_size": 48}, (), "64 inputs, which the group_size 48 .* does not divide"),
        (
            AWQ,
            ("--quantization", "int8"),
            "int8: .* is quantized already, as awq; leave",
        ),
        ({"quant_method": "fp8"} | AWQ | {"bits": 2}, (), "bits is read as 4"),
    ],
)
def test_errors(tiny: Path, tmp_path: Path, capsys, config, options, words: str) -> None:
    values = json.loads((tiny / "config.json").read_text()) | {"quantization_config": config}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert main(["explain", str(tmp_path), "--platform", "cpu", *options]) == 2
    error = capsys.readouterr().err
    assert re.search(words, error) and error.count("\n") == 1


def test_two_descriptions_that_differ(tiny: Path, tmp_path: Path, capsys) -> None:
    values = json.loads((tiny / "config.json").read_text())
    values |= {"quantization_config": AWQ, "compression_config": AWQ | {"bits": 8}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert main(["explain", str(tmp_path), "--platform", "cpu"]) == 2
    assert "describes its quantization twice" in capsys.readouterr().err


def test_a_file_of_modelopt(tiny: Path, tmp_path: Path, capsys) -> None:
    shutil.copy(tiny / "config.json", tmp_path)
    inner = {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    said = {"producer": {"name": "modelopt"}, "quantization": inner}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said))
    assert main(["explain", str(tmp_path), "--platform", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "weight=(format=fp8_e4m3 granularity=channel) activation=(format=fp8_e4m3 " in out
    assert re.search(r"float\d+, x in fp8_e4m3 by tensor", out)  # held so: no kernel takes both


INTEGERS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"g": {"targets": ["Linear"], "weights": INTEGERS}},
    "ignore": ["lm_head"],
}


def with_group(**changed: object) -> dict[str, object]:
    return PACKED | {"config_groups": {"g": PACKED["config_groups"]["g"] | changed}}


@pytest.mark.parametrize(
    ("written", "candidate", "rows"),
    [
        (
            Written(PACKED, {"": packed(4, 32, True)}),
            "groups",
            {
                "weight_packed": ("int32, 4 bits", "int4 by group of 32", 4.5 / 8),
                "weight_scale": ("float16", "int4 by group of 32", None),
            },
        ),
        (
            Written(FP8, BLOCKS),
            "rounding",
            {
                "weight": ("float8_e4m3fn, 8 bits", "bfloat16, x in fp8_e4m3 by group of 32", 2),
                "weight_scale_inv": ("float32", "bfloat16, x in fp8_e4m3 by group of 32", None),
            },
        ),
    ],
)
def test_explain_counts_the_numbers_of_a_matrix(
    tiny: Path, tmp_path: Path, capsys, written: Written, candidate: str, rows: dict
) -> None:
    """Not the elements that they are packed in; and names the form that is held."""
    path, _ = write(tiny, tmp_path, written)
    options = ["--platform", "cpu", "--dtype", "bfloat16", "--kernel", f"linear={candidate},native"]
    assert main(["explain", str(path), *options, "--json"]) == 0
    fates = json.loads(capsys.readouterr().out)["weights"]
    found = {fate["name"]: fate for fate in fates if fate["holder"] == f"linear/{candidate}"}
    for kind, (stored, form, size) in rows.items():
        fate = found[f"model.layers.*.self_attn.o_proj.{kind}"]
        assert (fate["stored"], fate["form"], fate["weight_bytes"]) == (stored, form, size)
    assert main(["explain", str(path), *options]) == 0
    said = f"{rows[next(iter(rows))][2]:.3g}"
    assert re.search(rf"o_proj.* {said}$", capsys.readouterr().out, re.MULTILINE)


NAME = "model.layers.1.self_attn.k_proj"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda t: t.pop(f"{NAME}.weight_scale_inv"), "lacks .*k_proj.weight_scale_inv"),
        (lambda t: t[f"{NAME}.weight_scale_inv"].fill_(float("nan")), "holds NaN or infinity"),
        (
            lambda t: t.update({f"{NAME}.weight_scale_inv": torch.ones(2, 2)}),
            r"weight_scale_inv has shape \[2, 2\]",
        ),
        (lambda t: t.update({f"{NAME}.weight": t[f"{NAME}.weight"].float()}), "of type float32"),
        (lambda t: t.update({f"{NAME}.qweight": torch.ones(2)}), "holds .*k_proj.qweight"),
    ],
)
def test_broken_files(tiny: Path, tmp_path: Path, spoil, words: str) -> None:
    stored, _ = write(tiny, tmp_path, Written(FP8, BLOCKS))
    tensors = {n: t.clone() for n, t in load_file(stored / "model.safetensors").items()}
    spoil(tensors)
    save_file(tensors, stored / "model.safetensors")
    with pytest.raises(CheckpointError, match=words):
        LLM(str(stored), platform="cpu", skip_tokenizer_init=True, max_model_len=64)


@pytest.mark.parametrize(
    ("quantize", "said", "words"),
    [
        (packed(4, 32, True), PACKED | {"format": "int-quantized"}, "holds .*weight_packed"),
        (packed(4, 32, True), with_group(targets=["re:.*none"]), "holds .*weight_packed"),
        (
            packed(4, 32, True),
            with_group(weights=INTEGERS | {"actorder": "group"}),
            "lacks .*weight_g_idx",
        ),
        (
            fp4(16, "modelopt"),
            {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
            "holds .*weight_scale_2",
        ),
    ],
    ids=["format", "targets", "actorder", "quant_algo"],
)
def test_a_wrong_description_is_named(
    tiny: Path, tmp_path: Path, quantize, said: dict, words: str
) -> None:
    stored, _ = write(tiny, tmp_path, Written(said, {"": quantize}))
    with pytest.raises(CheckpointError, match=f"{words}.*; check quantization_config"):
        LLM(str(stored), platform="cpu", skip_tokenizer_init=True, max_model_len=64)
