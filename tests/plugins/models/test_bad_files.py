"""What a checkpoint says wrong ends a command with code 2 and one line that names it."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from hotshoe.cli.main import main

EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"
#: A variant of `conftest.VARIANTS`, what its config.json says instead, and the complaint.
WRONG = {
    "layer type": (
        "qwen3-next",
        {"layer_types": ["linear_attention", "hash_attention", "linear_attention"]},
        "layer_types",
    ),
    "layer type of a state": (
        "nemotron-h",
        {"layers_block_type": ["mamba", "mlp", "rwkv", "mlp"]},
        "layers_block_type",
    ),
    "kind of MLP": (
        "glm4-moe-lite",
        {"mlp_layer_types": ["sparse", "dense", "hashed"]},
        "mlp_layer_types",
    ),
    "router": ("cohere2-moe", {"expert_selection_fn": "hash"}, "expert_selection_fn"),
    "method of top k": ("deepseek-v2-groups", {"topk_method": "hash"}, "topk_method is 'hash'"),
    "scoring function": ("glm4-moe", {"scoring_func": "hash"}, "scoring_func is 'hash'"),
    "groups of experts": ("deepseek-v3-experts", {"n_group": 3}, "n_routed_experts is 8.* 3 equal"),
    "experts of a token": ("qwen3-moe", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
}


@pytest.fixture
def changed(variants, checkpoints, tmp_path):
    """Return a function that writes a variant's checkpoint with changes of config.json."""

    def change(name, values, tensors=None):
        path = checkpoints.get(variants[name]).path
        config = json.loads((path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **values}))
        found = load_file(path / "model.safetensors")
        save_file(found if tensors is None else tensors(found), tmp_path / "model.safetensors")
        return str(tmp_path)

    return change


@pytest.fixture
def refused(capfd):
    """Return a function that runs a command, and returns the one line that refuses it."""

    def run(*words):
        assert main([*words, "--platform", "cpu", "--dtype", "float32"]) == 2
        (line,) = [text for text in capfd.readouterr().err.splitlines() if "error:" in text]
        return line

    return run


@pytest.mark.parametrize("what", WRONG)
def test_a_configuration_is_refused_by_its_key(what, changed, refused):
    name, values, complaint = WRONG[what]
    assert re.search(complaint, refused("explain", changed(name, values)))


def test_a_missing_expert_is_named(changed, refused):
    def cut(tensors):
        return {name: tensor for name, tensor in tensors.items() if name != EXPERT}

    path = changed("qwen3-moe", {}, cut)
    lengths = ("--input-len", "8", "--output-len", "4")
    line = refused("bench", "latency", path, "--skip-tokenizer-init", *lengths)
    assert f"the checkpoint lacks {EXPERT}" in line


def test_layers_that_predict_further_tokens_are_listed(changed, capfd):
    """Start-up counts them; see `test_deepseek`."""

    def extend(tensors):
        further = {f"model.layers.3.{part}.weight": torch.zeros(8) for part in ("eh_proj", "enorm")}
        return tensors | further

    path = changed("glm4-moe", {"num_nextn_predict_layers": 1}, extend)
    assert main(["explain", path, "--platform", "cpu", "--weights"]) == 0
    listed = capfd.readouterr().out
    assert len(re.findall(r"model\.layers\.3\..* not used by this architecture", listed)) == 2


def test_what_has_no_kernel_is_refused(changed, refused):
    line = refused(
        "explain", changed("llama-biases-head-dim", {"head_dim": 520}), "--require-native"
    )
    assert "slot attention that --require-native allows" in line
