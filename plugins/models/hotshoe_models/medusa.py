"""Medusa: a few heads that each guess one token further ahead from the final hidden state alone.

A head is some blocks x + silu(x W + b) and an output matrix. It has no cache and reads no token, so
all heads guess at once.

Source: Cai et al. 2024, arXiv:2401.10774, with the layout of the checkpoints published beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import silu

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext, ForwardBatch, Logits
from hotshoe.layers.cache import CacheLayer
from hotshoe.models import ModelConfig
from hotshoe.types.trees import NAME, DraftTree
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
        ctx: With the heads' weight table, and the shape of the tree, if one is wanted.
        model: Gives sizes.
        num_heads, num_blocks: Heads, and blocks of each.

    Raises:
        ConfigError: The tree is deeper than there are heads.
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
        self.tree = ctx.tree
        if ctx.tree is not None:
            if ctx.tree.depth > num_heads:
                raise ConfigError(
                    f"{NAME} has paths of {ctx.tree.depth} tokens, but the model has {num_heads} "
                    "heads; leave longer paths out"
                )
            self._widths, chosen = _choices(ctx.tree)
            self._nodes = torch.tensor(chosen, device=ctx.device)

    def forward(self, ids: Tensor, hidden: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """See `hotshoe.models.base.DraftHead`."""
        found = hidden if batch.outputs_at is None else hidden[batch.outputs_at]
        return found, found

    def guess(self, hidden: Tensor) -> Tensor:
        """Return the likeliest tokens [n, num_heads] for hidden [n, hidden_size], or those of the
        tree's nodes [n, nodes]."""
        if self.tree is None:
            return torch.stack(
                [self._logits(i, hidden).argmax(1) for i in range(len(self._heads))], 1
            )
        best = [self._logits(i, hidden).topk(width).indices for i, width in enumerate(self._widths)]
        return torch.cat(best, 1).index_select(1, self._nodes)

    def _logits(self, number: int, hidden: Tensor) -> Tensor:
        """Return a head's logits [n, vocab_size]."""
        blocks, logits = self._heads[number]
        for block in blocks:
            hidden = hidden + silu(block(hidden))
        return logits(hidden)


def _choices(tree: DraftTree) -> tuple[list[int], list[int]]:
    """Return how many of the likeliest tokens each head tells, and for each node the index of its
    token among those of all heads."""
    widths = [tree.choices(depth) for depth in range(tree.depth)]
    firsts = list(accumulate(widths, initial=0))
    return widths, [firsts[len(path) - 1] + path[-1] for path in tree.paths]


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
