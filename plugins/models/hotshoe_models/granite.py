"""Granite 3, dense and with experts: Llama's shape with factors on embeddings, scores, residuals
and logits.

Defaults are those of transformers' GraniteConfig, GraniteMoeConfig and GraniteMoeSharedConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext, Mixture, MoeNames, Stacked
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import SHAPE, llama_spec
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.values import count, layer_specs, number, with_defaults

DEFAULTS = {
    **SHAPE,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}
MOE_DEFAULTS = {
    **DEFAULTS,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 0,
}
BLOCK = "block_sparse_moe."
NAMES = MoeNames(
    router=f"{BLOCK}router.layer",
    stacked=Stacked(gate_up=f"{BLOCK}input_linear.weight", down=f"{BLOCK}output_linear.weight"),
    shared_gate_up=("shared_mlp.input_linear",),
    shared_down="shared_mlp.output_linear",
)
#: Of files that have gate and up apart, and each expert's matrices.
BY_NAME = replace(
    NAMES, stacked=None, shared_gate_up=("shared_mlp.gate_proj", "shared_mlp.up_proj")
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GraniteForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    spec = llama_spec(config, layer_specs(config, ctx), **factors(config))
    return DenseDecoder(spec, ctx)


def factors(config: ModelConfig) -> dict[str, float]:
    """Return in what the family differs from Llama's shape."""
    return {
        "attention_scale": number(config, "attention_multiplier"),
        "embedding_scale": number(config, "embedding_multiplier"),
        "residual_scale": number(config, "residual_multiplier"),
        "logits_divisor": number(config, "logits_scaling"),
    }


def build_moe(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GraniteMoeForCausalLM and GraniteMoeSharedForCausalLM."""
    config = with_expert_defaults(config, MOE_DEFAULTS)
    layers = with_experts(layer_specs(config, ctx), granite_experts(config), lambda i: True)
    return DenseDecoder(llama_spec(config, layers, **factors(config)), ctx)


def granite_experts(config: ModelConfig) -> Mixture:
    """Describe experts, and shared ones where the file has them."""
    return mixture(
        config,
        RouterSpec(renormalize=True),
        experts="num_local_experts",
        size="intermediate_size",
        shared_size=count(config, "shared_intermediate_size"),
        names=BY_NAME if config.get("experts_by_name") else NAMES,
    )
