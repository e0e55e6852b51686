"""PLaMo 13B: attention and MLP start from one norm, and heads of queries take turns with keys:
query h reads keys h modulo the number of heads of keys.

They are read in the order that other models have, those of the same keys side by side.
Source: the code beside its checkpoint, whose configuration class has these defaults.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from torch import Tensor

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.gguf.keys import CONVERTED
from hotshoe_models.llama import DEFAULTS as LLAMA
from hotshoe_models.remade import Recipe, remake
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import decoder_spec, flag, layer_specs, refuse, with_defaults

DEFAULTS = {**LLAMA, "intermediate_size": 13312, "n_shared_head": 8}
NAMES = WeightNames(layer="model.layers.layers.{}.", input_norm="norm", mlp_norm=None)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build PlamoForCausalLM. Its files say another number of heads of keys than there are."""
    config = with_defaults(config, DEFAULTS)
    if not flag(config, CONVERTED):
        heads, shared = config.size("num_attention_heads"), config.size("n_shared_head")
        if heads % shared:
            raise refuse(config, "n_shared_head", f"has {heads} query heads to share keys")
        own = {"num_key_value_heads": heads // shared}
        config = replace(config, values={**config.values, **own})
        remake(ctx, partial(_recipes, heads, shared))
    spec = decoder_spec(
        config, layer_specs(config, ctx), activation="silu", parallel=True, names=NAMES
    )
    return DenseDecoder(spec, ctx)


def _recipes(heads: int, shared: int, names: Iterable[str]) -> dict[str, Recipe]:
    """Order the rows of q by heads, and the columns behind attention."""
    turns = {
        "q_proj.weight": partial(_ordered, heads, shared),
        "o_proj.weight": lambda o: _ordered(heads, shared, o.T).T,
    }
    return {
        name: ((name,), turn) for name in names for end, turn in turns.items() if name.endswith(end)
    }


def _ordered(heads: int, shared: int, rows: Tensor) -> Tensor:
    """Put queries side by side [heads * d, n] that read the same keys."""
    split = rows.reshape(shared, heads // shared, -1, rows.shape[1])
    return split.transpose(0, 1).reshape(rows.shape)
