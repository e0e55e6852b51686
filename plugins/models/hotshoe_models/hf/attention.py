"""The attention of transformers' modules, behind its attention interface.

Each module that attends calls `attend` by the name `NAME`. A first pass over two tokens, before any
weight is read, finds out who attends, and with which heads, scale, window and cap. Later passes
hand q, k and v to a layer of ours, which has the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from hotshoe.errors import CheckpointError
from hotshoe.layers import Attention, BuildContext, ForwardBatch, stored_kv_scales
from hotshoe_models.hf import INSTEAD

NAME = "hotshoe"
#: Tensors that attention is handed and has no use for.
UNUSED = ("position_ids", "cache_position")


@dataclass(slots=True)
class Run:
    """What the modules of one model share.

    Attributes:
        batch: The step; None while the first pass finds out who attends.
        found: Modules that attended in the first pass, in order.
        layers: What attends for each of them.
        chosen: Experts of a token, by the module that holds them all.
    """

    batch: ForwardBatch | None = None
    found: list[Found] = field(default_factory=list)
    layers: dict[nn.Module, Attention] = field(default_factory=dict)
    chosen: dict[nn.Module, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """One module's attention as the first pass saw it; `others` are further arguments."""

    module: nn.Module
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None
    others: dict[str, Any]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers asks for it.

    Args:
        module: Who asks.
        query: [1, num_heads, num_tokens, head_dim], rotated.
        key: [1, num_kv_heads, num_tokens, head_dim], rotated.
        value: [1, num_kv_heads, num_tokens, value_dim].
        attention_mask: None, as no mask is made for `NAME`.
        options: Scale, window and so on; the first pass has looked at them.

    Returns:
        [1, num_tokens, num_heads, value_dim], and None in the place of probabilities.
    """
    run: Run = module.hotshoe_run  # type: ignore[assignment]
    if run.batch is None:
        run.found.append(_found(module, query, key, value, attention_mask, options))
        _, heads, tokens, _ = query.shape
        return query.new_zeros(1, tokens, heads, value.shape[-1]), None
    layer, dim, width = run.layers[module], query.shape[-1], value.shape[-1]
    if width != dim:  # a cache has equal places for both
        value = nn.functional.pad(value, (0, dim - width))
    qkv = torch.cat([part[0].transpose(0, 1).flatten(1) for part in (query, key, value)], dim=1)
    out = layer(qkv, run.batch).view(1, len(qkv), -1, dim)
    return out if width == dim else out[..., :width], None


AttentionInterface.register(NAME, attend)


def _found(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    options: dict[str, Any],
) -> Found:
    others = dict(options)
    scale = others.pop("scaling", None)
    if mask is not None:
        others["attention_mask"] = mask
    if others.get("is_causal") is None:
        others["is_causal"] = getattr(module, "is_causal", True)
    dim = query.shape[-1]
    return Found(
        module,
        query.shape[1],
        key.shape[1],
        dim,
        value.shape[-1],
        dim**-0.5 if scale is None else float(scale),
        others.pop("sliding_window", None),
        others.pop("softcap", None),
        others.pop("s_aux", None),
        others,
    )


def build_layers(ctx: BuildContext, model: nn.Module, run: Run) -> None:
    """Make the layers that attend, in the order of the first pass.

    Raises:
        CheckpointError: A module attends in a manner that no layer of ours has.
    """
    names = {module: name for name, module in model.named_modules()}
    alone = replace(ctx, rank=0, size=1)  # the first pass has seen this rank's heads
    parameters = {id(tensor): name for name, tensor in model.named_parameters()}
    for found in run.found:
        name = f"{type(model).__name__}: {names[found.module]}"
        _check(found, name, run)
        sinks = None if found.sinks is None else parameters.get(id(found.sinks))
        if found.sinks is not None and sinks is None:
            raise _cannot(name, "has sinks that are no weight of its own")
        heads = found.num_heads, found.num_kv_heads, found.head_dim, found.scale
        spec = alone.attention_spec(*heads)
        spec = replace(spec, window=found.window, softcap=found.softcap)
        scales = stored_kv_scales(ctx.format, names[found.module])
        whole = found.sinks is not None and found.sinks.numel() == found.num_heads
        own = alone if whole else ctx  # else sinks are divided as heads are
        run.layers[found.module] = Attention(own, spec, None, sinks=sinks, kv_scales=scales)


def _check(found: Found, name: str, run: Run) -> None:
    """Refuse what a layer of ours does not compute."""
    if found.module in run.layers:
        raise _cannot(name, "attends twice in one pass")
    if found.others.pop("is_causal") is False:
        raise _cannot(name, "is not causal")
    if found.value_dim > found.head_dim:
        raise _cannot(name, f"has values of {found.value_dim}, wider than its keys")
    tensors = [key for key, value in found.others.items() if isinstance(value, Tensor)]
    if unread := sorted(set(tensors) - set(UNUSED)):
        raise _cannot(name, f"takes {', '.join(unread)}, which no attention of the engine does")


def _cannot(name: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"{name} {why}, so that transformers' code cannot run over the engine's cache; {INSTEAD}"
    )
