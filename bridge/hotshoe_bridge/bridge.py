"""Puts operations into a model's modules, each only after it gave what the module itself gives.

A module whose results differ stays as it is and is listed, and so is one that no recipe knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hotshoe.foreign import ForeignError, foreign
from hotshoe_bridge.operations import Operations
from hotshoe_bridge.recipes import RECIPES, Forward, Recipe

#: By how much results may differ, as a share of the module's own: a few roundings of the type.
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}
ROWS = 5


@dataclass(slots=True)
class Bridged:
    """What became of a model's modules.

    Attributes:
        served: The slot and the candidate of each module that is served, by the module's name.
        left: Why others that hold parameters of their own stay as they are.
    """

    served: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    _modules: list[nn.Module] = field(default_factory=list)

    def undo(self) -> None:
        """Give modules their own forward back."""
        for module in self._modules:
            del module.forward
        self._modules.clear()
        self.served.clear()


@torch.inference_mode()
def bridge(model: nn.Module, operations: Operations) -> Bridged:
    """Let operations compute a model's norms, linear layers and MLPs.

    Weights that a kernel prepares are held twice, by the module and by the operation. A weight that
    changes later is not seen: undo, and bridge again.

    Args:
        model: In the element type and on the device that it will run in.
        operations: Of a platform whose tensors lie where the model's do.
    """
    found = Bridged()
    served: tuple[str, ...] = ()
    for name, module in list(model.named_modules()):
        if name.startswith(served or ("\0",)) or not _own_parameters(module):
            continue
        forward, said = _served(module, operations)
        if forward is None:
            if said or _holds(module):
                found.left[name] = said or f"no recipe for {type(module).__name__}"
            continue
        module.forward = forward
        found._modules.append(module)
        found.served[name] = said
        served += (f"{name}.",)
    return found


def _served(module: nn.Module, operations: Operations) -> tuple[Forward | None, str]:
    """Return what stands for a module's forward, and who serves it; or why nothing does."""
    reasons = []
    for recipe in RECIPES:
        try:
            with foreign():
                spec = recipe.reads(module)
                if spec is None:
                    continue
                forward = recipe.makes(module, spec, operations)
                off = _difference(module, forward, recipe, spec)
        except ForeignError as failed:
            reasons.append(f"{recipe.slot}: {failed}")
            continue
        dtype = next(module.parameters()).dtype
        if off <= CLOSE[dtype]:
            return forward, _who(recipe, spec, operations)
        reasons.append(f"{recipe.slot} computes something else, by {off:.2g}")
    return None, "; ".join(reasons)


def _difference(module: nn.Module, forward: Forward, recipe: Recipe, spec: Any) -> float:
    """Return how far a forward is from the module's own, as a share of this one's results."""
    sample = next(module.parameters())
    source = torch.Generator().manual_seed(recipe.size(spec))
    x = torch.randn(ROWS, recipe.size(spec), generator=source).to(sample.device, sample.dtype)
    want: Tensor = module(x.clone()).double()
    got = forward(x.clone()).double()
    return float((got - want).norm() / want.norm().clamp(min=1e-30))


def _who(recipe: Recipe, spec: Any, operations: Operations) -> str:
    decided = operations.selector.decide(recipe.slot, spec)
    return f"{recipe.slot}/{decided.chosen}"


def _own_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _holds(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def summary(found: Bridged) -> Iterator[str]:
    """Say what became of modules, a line for each kind."""
    counts: dict[str, int] = {}
    for who in found.served.values():
        counts[who] = counts.get(who, 0) + 1
    yield from (f"{count} by {who}" for who, count in counts.items())
    reasons: dict[str, list[str]] = {}
    for name, why in found.left.items():
        reasons.setdefault(why, []).append(name)
    yield from (f"left {', '.join(names)}: {why}" for why, names in reasons.items())
