"""openPangu Ultra MoE and Pangu Pro MoE against their formulas."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.plugins.models.conftest import LENGTH, VOCAB
from tests.plugins.models.plain import (
    CONFIG,
    DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    SIZE,
    WIDTH,
    Drawn,
    attended,
    check,
    mlp_names,
    rotated,
    routed,
    written,
)
from torch import Tensor

from hotshoe.errors import CheckpointError

EXPERTS, CHOSEN, SCALE, INNER = 8, 3, 2.5, 32
Q, KV, NOPE, ROPE, V = 24, 40, 12, 8, 10
ULTRA = CONFIG | {
    "architectures": ["PanguUltraMoEForCausalLM"],
    "num_key_value_heads": HEADS,
    "attention_q_lora_dim": Q,
    "attention_kv_lora_dim": KV,
    "attention_qk_dim": NOPE,
    "attention_qk_rope_dim": ROPE,
    "attention_v_dim": V,
    "num_routed_experts": EXPERTS,
    "num_shared_experts": 2,
    "num_experts_per_tok": CHOSEN,
    "moe_intermediate_size": INNER,
    "num_dense_layers": 1,
    "routed_scaling_factor": SCALE,
    "norm_topk_prob": True,
    "num_mtp_layers": 1,
}


def pairs(x: Tensor) -> Tensor:
    """Bring neighboring channels half of them apart, as rotation takes them."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def latent(w: Drawn, x: Tensor, prefix: str) -> Tensor:
    q = w.norm(w.linear(x, f"{prefix}q_a_proj", Q), f"{prefix}q_a_layernorm")
    q = w.linear(q, f"{prefix}q_b_proj", HEADS * (NOPE + ROPE)).view(len(x), HEADS, -1)
    both, shared = w.linear(x, f"{prefix}kv_a_proj_with_mqa", KV + ROPE).split((KV, ROPE), -1)
    both = w.norm(both, f"{prefix}kv_a_layernorm")
    kv = w.linear(both, f"{prefix}kv_b_proj", HEADS * (NOPE + V)).view(len(x), HEADS, -1)
    turned = rotated(pairs(shared[:, None])).expand(-1, HEADS, -1)
    q = torch.cat((q[..., :NOPE], rotated(pairs(q[..., NOPE:]))), -1)
    k = torch.cat((kv[..., :NOPE], turned), -1)
    return w.linear(attended(q, k, kv[..., NOPE:]), f"{prefix}o_proj", SIZE)


def experts(w: Drawn, x: Tensor, prefix: str, corrected: bool) -> Tensor:
    scores = w.linear(x, f"{prefix}gate", EXPERTS).sigmoid()
    moved = scores
    if corrected:
        moved = scores + w.of(f"{prefix}gate.e_score_correction_bias", EXPERTS, around=0.0)
    kept = torch.zeros_like(scores).scatter(1, moved.topk(CHOSEN).indices, 1) * scores
    kept = kept / kept.sum(-1, keepdim=True) * SCALE
    out = routed(w, x, kept, lambda i: mlp_names(f"{prefix}experts.{i}."), INNER)
    return out + w.mlp(x, mlp_names(f"{prefix}shared_experts."), 2 * INNER)


def ultra(w: Drawn, ids: Tensor, sandwich: bool) -> Tensor:
    def behind(x: Tensor, name: str) -> Tensor:
        return w.norm(x, name) if sandwich else x

    x = w.of("model.embed_tokens.weight", VOCAB, SIZE)[ids]
    for i in range(LAYERS):
        prefix = f"model.layers.{i}."
        out = latent(w, w.norm(x, f"{prefix}input_layernorm"), f"{prefix}self_attn.")
        x = x + behind(out, f"{prefix}post_attention_layernorm")
        before = "pre_mlp_layernorm" if sandwich else "post_attention_layernorm"
        taken, mlp = w.norm(x, f"{prefix}{before}"), f"{prefix}mlp."
        out = experts(w, taken, mlp, sandwich) if i else w.mlp(taken, mlp_names(mlp), WIDTH)
        x = x + behind(out, f"{prefix}post_mlp_layernorm")
    w.norm(x, f"model.layers.{LAYERS}.enorm")  # of a layer that predicts further tokens
    return w.linear(w.norm(x, "model.norm"), "lm_head", VOCAB)


@pytest.mark.parametrize("sandwich", [True, False])
def test_logits_are_those_of_the_formula(sandwich: bool, stepper_class, tmp_path: Path) -> None:
    """One of the forms corrects its router's choice, too."""
    config = ULTRA | {"sandwich_norm": sandwich, "router_enable_expert_bias": sandwich}
    check(tmp_path, config, lambda w, ids: ultra(w, ids, sandwich), stepper_class)


@pytest.mark.parametrize("values", [{"param_sink_number": 128}, {"use_mhc": True}])
def test_what_later_models_have_is_refused(
    values: dict[str, Any], stepper_class, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(ULTRA | values))
    with pytest.raises(CheckpointError, match="is served without it"):
        stepper_class(tmp_path, LENGTH)


GROUPS = 2
PRO = CONFIG | {
    "architectures": ["PanguProMoEForCausalLM"],
    "num_experts": EXPERTS,
    "num_experts_per_tok": GROUPS,
    "moe_intermediate_size": INNER,
    "shared_expert_intermediate_size": 40,
    "mlp_only_layers": [1],
}


def biased(w: Drawn, x: Tensor, name: str, rows: int) -> Tensor:
    return w.linear(x, name, rows) + w.of(f"{name}.bias", rows, around=0.0)


def winners(w: Drawn, x: Tensor, prefix: str) -> Tensor:
    shares = w.linear(x, f"{prefix}gate", EXPERTS).softmax(-1)
    kept = torch.zeros_like(shares)
    for group in torch.arange(EXPERTS).chunk(GROUPS):
        best = group[shares[:, group].argmax(-1)][:, None]
        kept.scatter_(1, best, shares.gather(1, best))
    kept = kept * (w.of(f"{prefix}router_scale", 1, EXPERTS).abs_())
    out = routed(w, x, kept, lambda i: mlp_names(f"{prefix}experts.{i}."), INNER)
    return out + w.mlp(x, mlp_names(f"{prefix}shared_expert."), 40)


def pro(w: Drawn, ids: Tensor) -> Tensor:
    x = w.of("model.embed_tokens.weight", VOCAB, SIZE)[ids]
    for i in range(LAYERS):
        prefix = f"model.layers.{i}."
        taken, block = w.norm(x, f"{prefix}input_layernorm"), f"{prefix}self_attn."
        q, k, v = (
            biased(w, taken, f"{block}{part}_proj", heads * DIM).view(len(x), heads, DIM)
            for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        )
        x = x + biased(w, attended(rotated(q), rotated(k), v), f"{block}o_proj", SIZE)
        taken, mlp = w.norm(x, f"{prefix}post_attention_layernorm"), f"{prefix}mlp."
        x = x + (w.mlp(taken, mlp_names(mlp), WIDTH) if i == 1 else winners(w, taken, mlp))
    return w.linear(w.norm(x, "model.norm"), "lm_head", VOCAB)


def test_the_best_of_each_group_counts(stepper_class, tmp_path: Path) -> None:
    check(tmp_path, PRO, pro, stepper_class)


def test_groups_of_other_sizes_are_refused(stepper_class, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PRO | {"num_experts_per_tok": 3}))
    with pytest.raises(CheckpointError, match="groups of experts of equal size"):
        stepper_class(tmp_path, LENGTH)


def test_factors_have_to_be_positive(stepper_class, tmp_path: Path) -> None:
    drawn = written(tmp_path, PRO, pro).drawn
    drawn["model.layers.0.mlp.router_scale"][0, 3] = 0
    save_file(drawn, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.router_scale has factors"):
        stepper_class(tmp_path, LENGTH)
