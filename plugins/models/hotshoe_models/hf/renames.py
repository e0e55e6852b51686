"""Names that checkpoints have for weights whose modules transformers calls otherwise.

Its table renames some weights, and stacks matrices of single experts into one tensor of all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightRenaming,
    WeightTransform,
)

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext
from hotshoe_models.hf import INSTEAD

#: Names without any pattern but * for an expert's number.
PLAIN = re.compile(r"[\w.*]+")


@dataclass(frozen=True, slots=True)
class Stacked:
    """A tensor [num_experts, rows, columns] that a checkpoint has expert by expert.

    Attributes:
        target: How the tensor's name ends.
        sources: How names of an expert's matrices end, in the order of rows; * is its number.
    """

    target: str
    sources: tuple[str, ...]

    def parts(self, name: str, expert: int) -> list[str]:
        """Return the names of one expert's matrices, for the tensor's name."""
        prefix = name.removesuffix(self.target)
        return [prefix + source.replace("*", str(expert)) for source in self.sources]


def rename_weights(ctx: BuildContext, model: PreTrainedModel) -> list[Stacked]:
    """Let names of a checkpoint stand for those of modules; return what it has expert by expert.

    Raises:
        CheckpointError: The checkpoint keeps weights in other shapes still.
    """
    found = []
    for transform in get_model_conversion_mapping(model, add_legacy=False):
        sources, targets = transform.source_patterns, transform.target_patterns
        if isinstance(transform, WeightRenaming):
            for source, target in zip(sources, targets, strict=True):
                ctx.weights.rename(_in_scope(transform, source), target)
        elif _stacks_experts(transform):
            found.append(Stacked(targets[0], tuple(sources)))
        else:
            raise CheckpointError(
                f"{type(model).__name__} makes {', '.join(targets)} of the checkpoint's "
                f"{', '.join(sources)} in a manner that transformers' code over the engine's cache "
                f"does not serve; {INSTEAD}"
            )
    return found


def _in_scope(transform: WeightTransform, source: str) -> str:
    """Let the beginning of a name be that of the part of a model whose own table says so."""
    scope = getattr(transform, "scope_prefix", None)
    if scope is None or not source.startswith("^"):
        return source
    levels = [level for level in (transform.base_model_prefix, scope) if level]
    return f"(?<=^{''.join(re.escape(f'{level}.') for level in levels)}){source[1:]}"


def _stacks_experts(transform: WeightTransform) -> bool:
    """Tell whether experts lie one after the other, and the matrices of each likewise."""
    sources: Sequence[str] = transform.source_patterns
    names = [*sources, *transform.target_patterns]
    kinds = [(type(op), getattr(op, "dim", None)) for op in transform.operations]
    wanted = [(MergeModulelist, 0), (Concatenate, 1)][: 1 + (len(sources) > 1)]
    plain = all(PLAIN.fullmatch(name) for name in names)
    return plain and kinds == wanted and all(s.count("*") == 1 for s in sources)
