"""GPT-BigCode (SantaCoder, StarCoder): GPT-2 with one head of keys and values for all queries.

A GGUF file of GPT-2 is such a model with q, k and v of all heads one after the other
(`grouped_qkv`), as its matrices are not transposed. Defaults are those of transformers'
GPTBigCodeConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models import gpt2
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.gpt2 import DEFAULTS as GPT2_DEFAULTS
from hotshoe_models.values import flag, with_defaults

DEFAULTS = {
    **{k: v for k, v in GPT2_DEFAULTS.items() if k != "scale_attn_by_inverse_layer_idx"},
    "activation_function": "gelu_pytorch_tanh",
    "multi_query": True,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GPTBigCodeForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    shared = flag(config, "multi_query")
    names = replace(gpt2.NAMES, grouped_qkv=not shared and config.get("grouped_qkv", True))
    heads = 1 if shared else config.size("n_head")
    spec = gpt2.gpt_spec(config, heads, transposed=False, names=names)
    return DenseDecoder(spec, ctx)
