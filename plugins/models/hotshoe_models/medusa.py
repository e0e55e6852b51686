"""Medusa: a few heads that each guess one token further ahead from the final hidden state alone.

A head is some blocks x + silu(x W + b) and an output matrix. It has no cache and reads no token, so
all heads guess at once.

Source: Cai et al. 2024, arXiv:2401.10774, with the layout of the checkpoints published beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

from hotshoe.layers import BuildContext, ForwardBatch, Logits
from hotshoe.layers.cache import CacheLayer
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.heads import Joined, check_sizes, plain_decoder
from hotshoe_models.values import refuse

#: Names of the published form, and of files that were converted: heads in the first group.
CONVERTED = (
    (r"^medusa_heads\.", ""),
    (r"^blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)$", r"\1.\2.linear.\3"),
    (r"^lm_heads\.(\d+)\.weight$", r"\1.{}.weight"),
)
MOST_HEADS, MOST_BLOCKS = 64, 16


class MedusaHeads:
    """See `hotshoe.models.base.DraftHead`.

    Args:
        ctx: With the heads' weight table.
        model: Gives sizes.
        num_heads, num_blocks: Heads, and blocks of each.
    """

    cache_layers: Sequence[CacheLayer] = ()

    def __init__(
        self, ctx: BuildContext, model: DenseDecoder, num_heads: int, num_blocks: int
    ) -> None:
        size, vocab = model.hidden_size, model.vocab_size
        self._heads = [
            (
                [Joined(ctx, f"{i}.{j}.linear", size, size) for j in range(num_blocks)],
                Logits(ctx, f"{i}.{num_blocks}", vocab, size),
            )
            for i in range(num_heads)
        ]

    def forward(self, ids: Tensor, hidden: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """See `hotshoe.models.base.DraftHead`."""
        found = hidden if batch.outputs_at is None else hidden[batch.outputs_at]
        return found, found

    def guess(self, hidden: Tensor) -> Tensor:
        """Return the likeliest tokens [n, num_heads] for hidden [n, hidden_size]."""
        tokens = []
        for blocks, logits in self._heads:
            x = hidden
            for block in blocks:
                x = x + silu(block(x))
            tokens.append(logits(x).argmax(1))
        return torch.stack(tokens, 1)


def build(
    config: ModelConfig, ctx: BuildContext, model: object, target: ModelConfig
) -> DenseDecoder:
    """Give a model Medusa's heads."""
    model = plain_decoder(model, target)
    check_sizes(config, model, ("hidden_size", "vocab_size"))
    heads, blocks = "medusa_num_heads", "medusa_num_layers"
    heads = heads if config.get(heads) is not None else "num_heads"
    blocks = blocks if config.get(blocks) is not None else "num_hidden_layers"
    for name, most in ((heads, MOST_HEADS), (blocks, MOST_BLOCKS)):
        if config.size(name) > most:
            raise refuse(config, name, f"has at most {most}")
    if config.size("truncated_vocab_size", model.vocab_size) != model.vocab_size:
        raise refuse(config, "truncated_vocab_size", f"guesses all {model.vocab_size} tokens")
    for pattern, replacement in CONVERTED:
        ctx.weights.rename(pattern, replacement.format(config.size(blocks)))
    if ctx.stage.is_last:
        model.draft_head = MedusaHeads(ctx, model, config.size(heads), config.size(blocks))
    return model
