"""OpenELM: layers of other sizes each, against Qwen 3, whose layers get zeros up to the largest."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.plugins.models.conftest import LENGTH, VOCAB, Checkpoint, Variant, save_tiny
from tests.plugins.models.test_published import compare

from hotshoe.errors import CheckpointError

SIZE, DIM, HEADS, KV_HEADS, FACTORS = 64, 16, [2, 4, 4], [1, 2, 2], [0.5, 1.0, 1.6]
WIDTHS = [32, 64, 96]
CONFIG: dict[str, Any] = {
    "architectures": ["OpenELMForCausalLM"],
    "vocab_size": VOCAB,
    "model_dim": SIZE,
    "head_dim": DIM,
    "num_transformer_layers": 3,
    "num_query_heads": HEADS,
    "num_kv_heads": KV_HEADS,
    "ffn_multipliers": FACTORS,
    "ffn_dim_divisor": 32,
    "max_context_length": LENGTH,
    "share_input_output_layers": True,
}


QWEN = Variant(
    "elm",
    "Qwen3",
    {
        "hidden_size": SIZE,
        "head_dim": DIM,
        "num_hidden_layers": 3,
        "num_attention_heads": max(HEADS),
        "num_key_value_heads": max(KV_HEADS),
        "intermediate_size": max(WIDTHS),
        "max_position_embeddings": LENGTH,
        "tie_word_embeddings": True,
    },
)


def published(made: Checkpoint) -> dict[str, torch.Tensor]:
    """Let layers of a Qwen 3 have the sizes, and return their tensors by the checkpoint's names.

    Heads and channels that a layer lacks add nothing where the matrices behind are zero.
    """
    model = made.model.model
    found = {
        "transformer.token_embeddings.weight": model.embed_tokens.weight,
        "transformer.norm.weight": model.norm.weight,
    }
    with torch.no_grad():
        for i, layer in enumerate(model.layers):
            attn, mlp, heads = layer.self_attn, layer.mlp, HEADS[i] * DIM
            kv, width = KV_HEADS[i] * DIM, WIDTHS[i]
            attn.o_proj.weight[:, heads:] = 0
            mlp.down_proj.weight[:, width:] = 0
            rows = ((attn.q_proj, heads), (attn.k_proj, kv), (attn.v_proj, kv))
            gates = torch.cat([part.weight[:width] for part in (mlp.gate_proj, mlp.up_proj)])
            found |= {
                f"transformer.layers.{i}.{name}.weight": tensor
                for name, tensor in {
                    "attn.qkv_proj": torch.cat([part.weight[:count] for part, count in rows]),
                    "attn.q_norm": attn.q_norm.weight,
                    "attn.k_norm": attn.k_norm.weight,
                    "attn.out_proj": attn.o_proj.weight[:, :heads],
                    "attn_norm": layer.input_layernorm.weight,
                    "ffn_norm": layer.post_attention_layernorm.weight,
                    "ffn.proj_1": gates,
                    "ffn.proj_2": mlp.down_proj.weight[:, :width],
                }.items()
            }
    return {name: tensor.detach().contiguous() for name, tensor in found.items()}


def test_logits_are_those_of_the_same_model(stepper_class, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    made = save_tiny(QWEN, source, random.getrandbits(31))
    save_file(published(made), target / "model.safetensors")
    (target / "config.json").write_text(json.dumps(CONFIG))
    compare(made, target, stepper_class)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_query_heads": 4}, "num_query_heads"),
        ({"ffn_multipliers": [1.0]}, "needs a number for each layer"),
        ({"ffn_multipliers": [1e308, 1.0, 1.0]}, "has factors up to 1024"),
        ({"ffn_with_glu": False}, "served with True alone"),
    ],
)
def test_what_changes_the_shape_is_named(
    values: dict[str, Any], message: str, stepper_class, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **values}))
    with pytest.raises(CheckpointError, match=message):
        stepper_class(tmp_path, LENGTH)
