"""GroveMoE 33B: Qwen 3's mixture, with a small expert for each two of its experts.

Source: Wu et al. 2025, arXiv:2508.07785, and the code beside the checkpoint, which has these
numbers and takes them from no file.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import with_expert_defaults
from hotshoe_models.qwen_moe import QWEN3_MOE_DEFAULTS, qwen3_spec
from hotshoe_models.spec import LayerSpec
from hotshoe_models.values import number, refuse, with_defaults

DEFAULTS = {
    "experts_per_group": 2,
    "expert_group_scale": 0.05,
    "expert_chunk_feed_forward_length": 128,
}
SMALL = "mlp.chunk_experts.{}."
NAMES = MoeNames(gate_up=(f"{SMALL}gate_proj", f"{SMALL}up_proj"), down=f"{SMALL}down_proj")


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GroveMoeForCausalLM. Weights of experts sum to 1, whatever a file says."""
    config = with_defaults(with_expert_defaults(config, QWEN3_MOE_DEFAULTS), DEFAULTS)
    config = replace(config, values={**config.values, "norm_topk_prob": True})
    experts, group = config.size("num_experts"), config.size("experts_per_group")
    if experts % group:
        raise refuse(config, "experts_per_group", f"has {experts} experts to divide")
    factor = number(config, "expert_group_scale")
    width = config.size("expert_chunk_feed_forward_length")
    spec = qwen3_spec(config, ctx)

    def with_small(layer: LayerSpec) -> LayerSpec:
        if layer.mixture is None:
            return layer
        small = replace(
            layer.mixture,
            intermediate_size=width,
            num_experts=experts // group,
            top_k=min(layer.mixture.top_k, experts // group),
            router=RouterSpec(renormalize=True, scale=factor),
            names=NAMES,
        )
        return replace(layer, adjugates=small)

    ctx.weights.ignore([r"\.mlp\.expert_bias$"])
    return DenseDecoder(replace(spec, layers=tuple(map(with_small, spec.layers))), ctx)
