"""xLSTM: sizes, keys that say the same, matrices in one, and values that cannot be."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from hotshoe.errors import CheckpointError
from hotshoe_models.xlstm import MATRICES

SMALL = {"hidden_size": 128, "num_heads": 8, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    "values", [SMALL, {"embedding_dim": 128, "num_blocks": 2, "hidden_size": None}]
)
def test_sizes_follow_from_the_hidden_size(build_family, values):
    ctx = build_family("xLSTM", sized=False, **values)
    block = "backbone.blocks.1."
    shapes = {name: wanted.shape for name, wanted in ctx.weights.expected.items()}
    assert shapes[f"{block}mlstm_layer.q.weight"] == (64, 128)
    assert shapes[f"{block}mlstm_layer.igate_preact.bias"] == (8,)
    assert shapes[f"{block}mlstm_layer.multihead_norm.weight"] == (128,)
    assert shapes[f"{block}ffn.proj_up.weight"] == (384, 128)  # 341 rounded up to 64
    assert f"{block}mlstm_layer.q.bias" not in shapes
    assert "backbone.blocks.2.norm_ffn.weight" not in shapes
    [state] = {layer.cache_spec.parts[1].shape for layer in ctx.cache_layers}
    assert (len(ctx.cache_layers), state) == (2, (8, 17, 8))


def test_fused_matrices_are_the_others_stacked(variants, checkpoints, stepper_class, tmp_path):
    source = checkpoints.get(variants["xlstm"]).path
    config = json.loads((source / "config.json").read_text()) | {"weight_mode": "fused"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(source / "model.safetensors")
    for i in range(3):
        for parts, (one,) in zip(MATRICES["single"], MATRICES["fused"], strict=True):
            prefix = f"backbone.blocks.{i}." + ("" if one.startswith("ffn") else "mlstm_layer.")
            for kind in ("weight", "bias"):
                found = [tensors.pop(f"{prefix}{part}.{kind}", None) for part in parts]
                if found[0] is not None:
                    tensors[f"{prefix}{one}.{kind}"] = torch.cat(found)
    save_file(tensors, tmp_path / "model.safetensors")
    tokens = torch.randint(3, 256, (12,)).tolist()
    ours, theirs = (stepper_class(path, 64).step({0: tokens})[0] for path in (tmp_path, source))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"embedding_dim": 64}, "embedding_dim is 64.*hidden_size of 128"),
        ({"num_blocks": 3}, "num_blocks is 3.*num_hidden_layers of 2"),
        ({"num_heads": 7}, "v_dim_factor is 1.0.*128 channels to divide among 7 heads"),
        ({"qk_dim_factor": 1e-9}, "qk_dim_factor.* 0 channels"),
        ({"qk_dim_factor": 1e308}, "qk_dim_factor"),
        ({"ffn_proj_factor": 1e308}, "ffn_proj_factor"),
        ({"weight_mode": "split"}, "weight_mode is 'split'.*single and fused"),
        ({"weight_mode": ["single"]}, "weight_mode"),
        ({"use_bias": True}, "use_bias is True.*no biases but"),
        ({"add_out_norm": False}, "add_out_norm is False"),
        ({"gate_soft_cap": 31}, "gate_soft_cap is 31.*at most 30"),
        ({"gate_soft_cap": None}, "gate_soft_cap"),
    ],
)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("xLSTM", **{**SMALL, **values})
