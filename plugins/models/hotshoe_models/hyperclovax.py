"""HyperCLOVA X Seed Think: Granite's factors, of which that on logits multiplies, and norms behind
each block where the file says so.

Defaults are those of transformers' HyperCLOVAXConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.granite import DEFAULTS as GRANITE
from hotshoe_models.granite import factors
from hotshoe_models.llama import llama_spec
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import flag, head_dim, layer_specs, with_defaults

DEFAULTS = {**GRANITE, "attention_multiplier": None, "head_dim": None, "use_post_norm": True}
NAMES = WeightNames(post_attention_norm="post_norm1", post_mlp_norm="post_norm2")


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build HyperCLOVAXForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    if config.get("attention_multiplier") is None:
        values = {**config.values, "attention_multiplier": head_dim(config) ** -0.5}
        config = replace(config, values=values)
    differences = factors(config)
    differences["logits_divisor"] = 1.0 / differences["logits_divisor"]
    names = NAMES if flag(config, "use_post_norm") else WeightNames()
    spec = llama_spec(config, layer_specs(config, ctx), names=names, **differences)
    return DenseDecoder(spec, ctx)
