"""Layers in the form that Hugging Face `kernels` asks for: without state, over a host's module.

`kernels` lets the `forward` of such a class stand for that of a module which names the layer, and
the module's own parameters are `self`'s. That library is not required here and was not run with
these classes; `hotshoe_bridge.transformers` needs none of it, and proves each module.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hotshoe_bridge.operations import Operations
from hotshoe_bridge.recipes import RECIPES, Recipe

_KEPT = "_hotshoe_forward"
_operations: list[Operations] = []


def use(operations: Operations) -> None:
    """Let layers that are called for the first time from now on use these operations."""
    _operations[:] = [operations]


def layer(recipe: Recipe) -> type[nn.Module]:
    """Make the class of a recipe's layer."""

    def forward(self: nn.Module, hidden_states: Tensor) -> Tensor:
        kept = vars(self).get(_KEPT)
        if kept is None:
            kept = vars(self)[_KEPT] = _made(recipe, self)
        result: Tensor = kept(hidden_states)
        return result

    about = f"Slot `{recipe.slot}` for modules that name layer {recipe.name}."
    members: dict[str, Any] = {
        "__doc__": about,
        "__module__": __name__,
        "forward": forward,
        "can_torch_compile": False,
        "has_backward": False,
    }
    return type(recipe.name, (nn.Module,), members)


def _made(recipe: Recipe, module: nn.Module) -> Any:
    if not _operations:
        use(Operations())
    spec = recipe.reads(module)
    if spec is None:
        raise TypeError(f"layer {recipe.name} does not know {type(module).__name__}")
    return recipe.makes(module, spec, _operations[0])


#: By the names that modules give: what `kernels` calls a mapping's layers.
LAYERS = {recipe.name: layer(recipe) for recipe in RECIPES if recipe.name}
globals().update(LAYERS)
