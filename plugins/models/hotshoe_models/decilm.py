"""DeciLM (Nemotron-NAS): Llama's layers, each with other sizes, and some without attention or MLP.

Nemotron Super 49B, Nemotron 51B and Ultra 253B are published so, and DeciLM 7B in an older form.
Source: the code beside these checkpoints, and the keys of their files.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import SHAPE, llama_spec
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import layer_specs, mapping, number, refuse, with_defaults

#: An MLP in attention's place keeps the name of its norm.
ALONE = WeightNames(input_norm="post_attention_layernorm", mlp_norm=None)
#: Sizes of MLPs are multiples of this.
STEP = 256


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build DeciLMForCausalLM."""
    config = with_defaults(config, SHAPE)
    blocks = config.get("block_configs")
    if blocks is None:
        layers = _by_heads(config, layer_specs(config, ctx))
    elif isinstance(blocks, list) and len(blocks) == config.size("num_hidden_layers"):
        layers = tuple(
            _layer(config, layer, block)
            for layer, block in zip(layer_specs(config, ctx), blocks, strict=True)
        )
    else:
        raise refuse(config, "block_configs", "needs an object for each layer")
    values = {**config.values, "num_key_value_heads": None}
    spec = llama_spec(replace(config, values=values), layers, intermediate_size=1)
    return DenseDecoder(spec, ctx)


def _layer(config: ModelConfig, layer: LayerSpec, block: object) -> LayerSpec:
    """Describe a layer by its entry of `block_configs`.

    Raises:
        CheckpointError: The entry is malformed, or has parts that are not described.
    """
    if not isinstance(block, Mapping):
        raise refuse(config, "block_configs", "needs an object for each layer")
    own = replace(config, values=dict(block))
    attention, mlp = (replace(config, values=mapping(own, key)) for key in ("attention", "ffn"))
    for part in (attention, mlp):
        for key in ("replace_with_linear", "sparsify", "sparse"):
            if part.get(key):
                raise refuse(part, key, "has attention and MLPs, or does without")
    attends, has_mlp = not attention.get("no_op"), not mlp.get("no_op")
    if not attends and not has_mlp:
        raise refuse(config, "block_configs", "has attention or an MLP in each layer")
    found: dict[str, Any] = {"mlp": has_mlp and attends}
    if has_mlp:
        found["intermediate_size"] = _width(config, mlp)
    if not attends:
        return replace(layer, mixer="mlp", rotation=None, names=ALONE, **found)
    heads, group = config.size("num_attention_heads"), attention.size("n_heads_in_group")
    if heads % group:
        raise refuse(attention, "n_heads_in_group", f"has {heads} query heads to share them")
    return replace(layer, num_kv_heads=heads // group, **found)


def _width(config: ModelConfig, mlp: ModelConfig) -> int:
    """Return channels between the matrices of an MLP."""
    if mlp.get("intermediate_size") is not None:
        return mlp.size("intermediate_size")
    exact = int(2 * number(mlp, "ffn_mult") * config.size("hidden_size") / 3)
    return -(-exact // STEP) * STEP


def _by_heads(config: ModelConfig, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Describe layers that differ in kv heads alone, as of DeciLM 7B."""
    key = "num_key_value_heads_per_layer"
    heads = config.get(key)
    if not isinstance(heads, list) or len(heads) != len(layers):
        raise refuse(config, key, "needs a number for each layer, or block_configs")
    each = [replace(config, values={key: value}) for value in heads]
    size = config.size("intermediate_size")
    return tuple(
        replace(layer, num_kv_heads=one.size(key), intermediate_size=size)
        for layer, one in zip(layers, each, strict=True)
    )
