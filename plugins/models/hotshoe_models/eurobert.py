"""EuroBERT: Llama's layers, whose tokens see later ones.

Source: Boizard et al. 2025, arXiv:2503.05500. Defaults are those of transformers' EuroBertConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.bidirectional import as_encoder
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import DEFAULTS as LLAMA
from hotshoe_models.llama import llama_spec
from hotshoe_models.values import layer_specs, with_defaults

DEFAULTS = {
    **LLAMA,
    "vocab_size": 128256,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build EuroBertModel. A head for words is not read."""
    config = with_defaults(config, DEFAULTS)
    config = replace(config, architecture="EuroBertModel")
    ctx.weights.ignore([r"^lm_head\."])
    return as_encoder(llama_spec(config, layer_specs(config, ctx)), ctx)
