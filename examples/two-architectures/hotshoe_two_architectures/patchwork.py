"""Patchwork: attention, and experts in every layer. Its checkpoints are laid out as Mixtral's."""

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.values import decoder_spec, layer_specs, refuse

#: What config.json may leave out.
DEFAULTS = {
    "hidden_act": "silu",
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-5,
    "rope_parameters": None,
    "tie_word_embeddings": False,
}
#: Prefixes within a layer; {} is an expert's number.
EXPERTS = MoeNames(
    router="block_sparse_moe.gate",
    gate_up=("block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3"),
    down="block_sparse_moe.experts.{}.w2",
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build PatchworkForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    if config.get("sliding_window") is not None:
        raise refuse(config, "sliding_window", "attends to the whole text")
    experts = mixture(
        config,
        RouterSpec(scoring="softmax", renormalize=True),
        experts="num_local_experts",
        size="intermediate_size",
        names=EXPERTS,
    )
    layers = with_experts(layer_specs(config, ctx), experts, lambda i: True)
    ctx.weights.ignore([r"^mtp\."], "layers that predict further tokens")
    return DenseDecoder(decoder_spec(config, layers), ctx)
