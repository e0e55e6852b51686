"""Experts behind slot `moe`, in the places of transformers' own modules of experts.

Those modules get each token's experts and what each counts; the slot chooses by logits. So the
logits are the logarithms of these weights, and the result is multiplied by their sum: the softmax
of logarithms is a share of the sum.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from transformers.integrations.moe import _default_apply_gate

from hotshoe.layers import BuildContext, Mixture, MoeNames, RoutedExperts
from hotshoe.layers import Stacked as StackedNames
from hotshoe.slots import CommunicatorOp, RouterSpec
from hotshoe.slots.reference.moe import EXPERT_ACTIVATIONS
from hotshoe_models.hf.attention import Run
from hotshoe_models.hf.modules import put
from hotshoe_models.hf.renames import Stacked

_log = logging.getLogger(__name__)
#: The logit of an expert that was not chosen.
NEVER = -1.0e30
#: A weight of zero has no logarithm.
TINY = torch.finfo(torch.float32).tiny


class ExpertsModule(nn.Module):
    """Experts of one layer.

    Args:
        experts: This rank's part.
        num_experts: Of all ranks.
        group: Ranks that have the other parts; None for nobody.
    """

    def __init__(
        self, experts: RoutedExperts, num_experts: int, group: CommunicatorOp | None = None
    ) -> None:
        super().__init__()
        self._experts, self._num_experts, self._group = experts, num_experts, group

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Add up what chosen experts make of a token.

        Args:
            hidden_states: [num_tokens, hidden_size].
            top_k_index: [num_tokens, top_k] int64, different experts.
            top_k_weights: [num_tokens, top_k], what each counts; not negative.

        Returns:
            [num_tokens, hidden_size].
        """
        weights = top_k_weights.float()
        logits = weights.new_full((len(weights), self._num_experts), NEVER)
        logits.scatter_(1, top_k_index, weights.clamp_min(TINY).log_())
        y = self._experts(hidden_states, logits)
        if self._group is not None:
            self._group.all_reduce(y, y)
        return y.mul_(weights.sum(-1, keepdim=True))  # in float32, rounded once


def are_experts(module: nn.Module) -> bool:
    """Tell whether a module is transformers' experts of one layer, all in a few tensors."""
    return hasattr(module, "is_transposed")


def watch_choices(module: nn.Module, run: Run) -> None:
    """Let experts of the first pass, which has no weights, note how many a token has."""

    def none(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        run.chosen[module] = top_k_index.shape[-1]
        return torch.zeros_like(hidden_states)

    module.forward = none  # type: ignore[method-assign]


def replace_experts(
    ctx: BuildContext, model: nn.Module, run: Run, stacked: Sequence[Stacked]
) -> list[str]:
    """Let slot `moe` compute experts of the usual form; name all others, and return the names.

    Args:
        ctx: The build context.
        model: Whose first pass is over.
        run: Of the first pass.
        stacked: Tensors that the checkpoint has expert by expert.
    """
    left = []
    for name, module in [(n, m) for n, m in model.named_modules() if are_experts(m)]:
        activation = _activation(module)
        if module not in run.chosen or activation is None:
            left.append(name)
            continue
        mixture = _mixture(name, module, run.chosen[module], activation, stacked)
        experts = RoutedExperts(ctx, "", mixture)
        put(model, name, ExpertsModule(experts, mixture.num_experts, ctx.communicator))
    if left:
        also = ", and stay in their type" if ctx.format.online else ""
        _log.warning(
            "experts of %d layers have a form of their own (%s): they run as transformers' code%s",
            *(len(left), left[0], also),
        )
    return left


def _activation(module: nn.Module) -> str | None:
    """Return the slot's name of what experts apply; None if they do anything else."""
    own = type(module)._apply_gate is not _default_apply_gate
    unusual = own or module.has_bias or getattr(module, "has_post_expert_norm", False)
    interleaved = module.has_gate and not getattr(module, "is_concatenated", True)
    if unusual or interleaved:
        return None
    x = torch.linspace(-4.0, 4.0, 65)
    same = (n for n, f in EXPERT_ACTIVATIONS.items() if torch.allclose(f(x), module.act_fn(x)))
    return next(same, None)


def _mixture(
    name: str, module: nn.Module, top_k: int, activation: str, stacked: Sequence[Stacked]
) -> Mixture:
    first = "gate_up_proj" if module.has_gate else "up_proj"
    count, *sizes = getattr(module, first).shape
    rows, columns = reversed(sizes) if module.is_transposed else sizes
    parts = {leaf: _parts(f"{name}.{leaf}", stacked) for leaf in (first, "down_proj")}
    if all(parts.values()):
        names = MoeNames(gate_up=tuple(parts[first]), down=parts["down_proj"][0])
    else:
        whole = partial(StackedNames, transposed=module.is_transposed)
        names = MoeNames(stacked=whole(gate_up=f"{name}.{first}", down=f"{name}.down_proj"))
    return Mixture(
        hidden_size=columns,
        intermediate_size=rows // 2 if module.has_gate else rows,
        num_experts=count,
        top_k=top_k,
        activation=activation,
        router=RouterSpec(),
        gated=module.has_gate,
        names=names,
    )


def _parts(name: str, stacked: Sequence[Stacked]) -> list[str]:
    """Return the prefixes of an expert's matrices, with {} for its number; none if stacked."""
    for stack in stacked:
        if name.endswith(stack.target):
            prefix = name.removesuffix(stack.target)
            sources = [source.removesuffix(".weight") for source in stack.sources]
            return [prefix + source.replace("*", "{}") for source in sources]
    return []
