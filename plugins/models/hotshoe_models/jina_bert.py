"""Jina's BERT (jina-embeddings-v2): slopes by distance in place of positions, MLPs with gates.

Source: Günther et al. 2023, arXiv:2310.19923, and the published code "jina-bert-implementation".
"""

from dataclasses import dataclass, replace

import torch

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import Alibi
from hotshoe_models.bert import DEFAULTS as BERT
from hotshoe_models.bert import bert_spec
from hotshoe_models.distances import BiasTable
from hotshoe_models.encoder import Encoder
from hotshoe_models.encoder_spec import EncoderNames
from hotshoe_models.values import refuse, with_defaults

SLOPES = "alibi"
DEFAULTS = {**BERT, "position_embedding_type": "absolute", "feed_forward_type": "original"}
#: By the name of an MLP: the activation of its gates, whose rows come first.
MLPS = {"geglu": "gelu", "reglu": "relu"}
NAMES = EncoderNames(
    positions=None,
    up=("mlp.gated_layers",),
    down="mlp.wo",
    mlp_norm="mlp.layernorm",
)


@dataclass(frozen=True, slots=True)
class Slopes:
    """See `hotshoe_models.distances.BiasRule`: what logits fall by for each token of distance, on
    both sides. Source: Press et al. 2022, arXiv:2108.12409."""

    def table(self, ctx: BuildContext, num_heads: int) -> BiasTable:
        """See `BiasRule`."""
        made = BiasTable(ctx, ctx.max_model_len - 1, num_heads)
        slopes = torch.tensor(Alibi(num_heads).slopes(num_heads))
        made.fill(lambda distances: -distances.abs()[:, None] * slopes)
        return made


def build(config: ModelConfig, ctx: BuildContext) -> Encoder:
    """Build JinaBertModel.

    Raises:
        CheckpointError: The file asks for what is not served.
    """
    config = with_defaults(config, DEFAULTS)
    if config.get("position_embedding_type") != SLOPES:
        raise refuse(config, "position_embedding_type", f"is served with {SLOPES}")
    if (kind := config.get("feed_forward_type")) not in MLPS:
        raise refuse(config, "feed_forward_type", f"knows only {', '.join(MLPS)}")
    absolute = replace(config, values={**config.values, "position_embedding_type": "absolute"})
    spec = bert_spec(absolute, ctx, r"bert\.")
    names = replace(NAMES, prefixes=spec.names.prefixes, unused=spec.names.unused)
    changes = {"activation": MLPS[kind], "gated": True, "up_bias": False, "bias": Slopes()}
    return Encoder(replace(spec, names=names, **changes), ctx)
