"""Pipeline stages of a module tree: each has some of its layers, by transformers' own plan.

The plan names, in order, what comes before the layers, the layers, and what comes behind them. What
a stage lacks is passed by. A base model that computes something of its own in between would do so
in each stage. That shows in a pass with all of these passed by: it has to return what it gets. A
factor on embeddings that is an attribute of the base model stays in the first stage alone.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext
from hotshoe_models.hf import INSTEAD


class Passed(nn.Module):
    """Hands on what it gets in the place of a module, whose attributes it has."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.__dict__["_passed"] = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_passed"], name)

    def forward(self, hidden_states: Tensor, *unused: Any, **options: Any) -> Tensor:
        """Return the hidden states."""
        return hidden_states


def cut(ctx: BuildContext, model: PreTrainedModel, head: str) -> range:
    """Keep this stage's part of a model alone; return which layers it has.

    Args:
        ctx: The build context, which learns what other stages hold.
        model: Built, without weights.
        head: The name of its output matrix.

    Raises:
        ConfigError: There are more stages than layers, transformers has no plan, or the base model
            computes with what a stage would hand on.
    """
    prefix = model.base_model_prefix
    base = getattr(model, prefix)
    plan = list(getattr(model.config, "base_model_pp_plan", None) or {})
    lists = [name for name in plan if isinstance(getattr(base, name, None), nn.ModuleList)]
    if ctx.stage.size == 1:
        return ctx.take_layers(model.config.get_text_config(decoder=True).num_hidden_layers)
    if len(lists) != 1:
        raise _cannot(ctx, model, "has no plan of stages")
    layers: nn.ModuleList = getattr(base, lists[0])
    own, at = ctx.take_layers(len(layers)), plan.index(lists[0])
    ends = [name for name in plan if name != lists[0]]
    places = [(layers, str(i)) for i in range(len(layers))] + [(base, name) for name in ends]
    whole = [(parent, name, getattr(parent, name)) for parent, name in places]
    for parent, name, module in whole:
        setattr(parent, name, Passed(module))
    if not _hands_on(base, model.config.hidden_size):
        factor = _take_factor(base, model.config.hidden_size)
        if factor is None:
            raise _cannot(ctx, model, "computes something beside its layers")
        if ctx.stage.is_first:
            setattr(base, *factor)
    there = {str(i) for i in own}
    there |= set(plan[:at]) if ctx.stage.is_first else set()
    there |= set(plan[at + 1 :]) if ctx.stage.is_last else set()
    for parent, name, module in whole:
        if name in there:
            setattr(parent, name, module)
        else:
            path = f"{lists[0]}.{name}" if parent is layers else name
            ctx.weights.elsewhere([f"^{re.escape(f'{prefix}.{path}.')}"])
    if not ctx.stage.is_last:
        ctx.weights.elsewhere([f"^{re.escape(head)}\\."])
    return own


def _hands_on(base: nn.Module, size: int) -> bool:
    """Tell whether a base model returns what it gets where all that has weights is passed by."""
    given = torch.randn(1, 2, size)
    options = {"use_cache": False, "return_dict": True}
    try:
        with torch.inference_mode():
            out = base(inputs_embeds=given, position_ids=torch.arange(2)[None], **options)
    except Exception:  # it reads a weight that no plan names
        return False
    return torch.equal(out.last_hidden_state, given)


def _take_factor(base: nn.Module, size: int) -> tuple[str, float] | None:
    """Set the factor without which a base model hands on to 1; return its name and value."""
    for name, value in list(vars(base).items()):
        if isinstance(value, float):
            setattr(base, name, 1.0)
            if _hands_on(base, size):
                return name, value
            setattr(base, name, value)
    return None


def _cannot(ctx: BuildContext, model: PreTrainedModel, why: str) -> ConfigError:
    return ConfigError(
        f"pipeline_parallel_size {ctx.stage.size}: transformers' {type(model).__name__} {why}, so "
        f"that no stages can divide it; leave it at 1, or {INSTEAD}"
    )
