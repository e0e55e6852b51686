"""Refact 1.6B: Llama's MLPs with layer norms without biases, one head of keys and values for all
queries, and slopes by distance (ALiBi).

llama.cpp norms without the mean. Sources: the model card, which says so, and the code beside the
checkpoint, whose configuration class has these defaults.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import Alibi
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.gguf.keys import CONVERTED
from hotshoe_models.published import respelled
from hotshoe_models.remade import Recipe, remake
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import decoder_spec, flag, number, refuse, with_defaults

DEFAULTS = {
    "vocab_size": 49216,
    "hidden_size": 2048,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": None,
    "max_position_embeddings": 4096,
    "layer_norm_epsilon": 1e-5,
    "multi_query": True,
    "tie_word_embeddings": True,
}
KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
}
NAMES = WeightNames(
    embedding="transformer.wte",
    final_norm="ln_f",
    layer="transformer.h.{}.",
    input_norm="ln_1",
    mlp_norm="ln_2",
    qkv=("attn.qkv",),
    o="attn.c_proj",
    gate_up=("mlp.gate_up_proj",),
    down="mlp.c_proj",
    bare=(r"^(?=(wte|h)\.)", "transformer."),
)
#: Parts that the first files have, and those of GGUF files.
PARTS = {
    "attn.qkv": ("attn.q", "attn.k", "attn.v"),
    "mlp.gate_up_proj": ("mlp.linear_1", "mlp.linear_3"),
}
#: Channels of MLPs are a multiple of this.
STEP = 256


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GPTRefactForCausalLM."""
    converted = flag(config, CONVERTED)
    config = with_defaults(respelled(config, KEYS), DEFAULTS)
    if not flag(config, "multi_query"):
        raise refuse(config, "multi_query", "has one head of keys and values")
    size, heads = config.size("hidden_size"), config.size("num_attention_heads")
    width, names = config.size("intermediate_size", 4 * size), NAMES
    if converted:
        names = replace(names, qkv=PARTS["attn.qkv"], gate_up=PARTS["mlp.gate_up_proj"])
    elif width == 1:
        raise refuse(config, "intermediate_size", "has MLPs of 2 channels or more")
    else:
        width = -(-(2 * width // 3) // STEP) * STEP
        remake(ctx, _joined)
    own = {"num_key_value_heads": 1, "head_dim": None}
    spec = decoder_spec(
        replace(config, values={**config.values, **own}),
        (LayerSpec(rotation=None),) * config.size("num_hidden_layers"),
        intermediate_size=width,
        activation="silu",
        norm="layer",
        norm_bias=False,
        norm_eps=number(config, "layer_norm_epsilon"),
        alibi=Alibi(heads),
        names=names,
    )
    return DenseDecoder(spec, ctx)


def _joined(names: Iterable[str]) -> dict[str, Recipe]:
    """Say how q, k and v are stacked, of q and both others in one matrix or apart; and gates and
    ups of the first files."""
    present, found = {*names}, {}
    both = {"attn.qkv": ("attn.q", "attn.kv")}
    for whole, parts in (*both.items(), *PARTS.items()):
        first = f".{parts[0]}.weight"
        for prefix in (name.removesuffix(first) for name in present if name.endswith(first)):
            of = tuple(f"{prefix}.{part}.weight" for part in parts)
            if present >= {*of}:
                found[f"{prefix}.{whole}.weight"] = of, lambda *rows: torch.cat(rows)
    return found
