"""Ranks divide modules as transformers' plans say: what each has of a model, and refusals.

What ranks compute together is in `tests/plugins/models/test_parallel.py`.
"""

import pytest
from transformers import HeliumConfig

from hotshoe.errors import ConfigError
from hotshoe_models.hf import build


def test_what_a_rank_has(described, context) -> None:
    """Matrices around attention are divided, and so are its heads; a plan may keep both whole."""

    def found(kind: str, size: int, **values):
        ctx = context(size=size, rank=size - 1)
        build(described(kind, **values), ctx)
        chosen = ctx.selector.decisions
        [heads] = {(s.num_heads, s.num_kv_heads) for slot, s in chosen if slot == "attention"}
        return heads, {(s.in_features, s.out_features) for slot, s in chosen if slot == "linear"}

    q, k, o, gate, down, logits = (32, 32), (32, 16), (32, 32), (32, 48), (48, 32), (32, 64)
    assert found("HeliumForCausalLM", 1) == ((4, 2), {q, k, o, gate, down, logits})
    q, k, o, gate, down, logits = (32, 16), (32, 8), (16, 32), (32, 24), (24, 32), (32, 32)
    assert found("HeliumForCausalLM", 2) == ((2, 1), {q, k, o, gate, down, logits})
    assert found("Olmo2ForCausalLM", 2)[0] == (4, 2)  # its norms of q and k take all heads


@pytest.mark.parametrize(
    ("kind", "values", "size", "reason"),
    [
        ("OPTForCausalLM", {}, 2, "plan of OPTForCausalLM divides nothing; leave it at 1"),
        ("HeliumForCausalLM", {}, 3, "does not divide the model's 4 attention heads; use 1, 2 or"),
        ("HeliumForCausalLM", {}, 4, "model's 2 key value heads; use 1 or 2"),
        ("HeliumForCausalLM", {"intermediate_size": 31}, 2, r"31 outputs of .*\.gate_proj"),
    ],
)
def test_what_cannot_be_divided(kind, values, size, reason, described, context) -> None:
    with pytest.raises(ConfigError, match=reason):
        build(described(kind, **values), context(size=size))


@pytest.mark.parametrize(
    ("module", "kind"), [("input_layernorm", "colwise"), ("mlp.up_proj", "sequence_parallel")]
)
def test_a_plan_that_divides_more(described, context, monkeypatch, module, kind) -> None:
    plan = HeliumConfig.base_model_tp_plan | {f"layers.*.{module}": kind}
    monkeypatch.setattr(HeliumConfig, "base_model_tp_plan", plan)
    with pytest.raises(ConfigError, match=rf"divides model\.layers\.0\.{module} \({kind}\)"):
        build(described("HeliumForCausalLM"), context(size=2))
