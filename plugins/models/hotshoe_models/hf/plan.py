"""How transformers' own plans divide modules among ranks that share all layers.

A plan names modules, with * for numbers, and how each is divided: by outputs, by inputs, or not at
all. Matrices follow it behind slot `linear`. What has no entry is whole on each rank. The first
pass then shows how many heads of attention a rank has.
"""

from __future__ import annotations

import re

from torch import nn
from transformers import PreTrainedModel

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext, Section, Split
from hotshoe_models.hf import INSTEAD
from hotshoe_models.hf.attention import Run

#: Kinds whose modules each rank has as a whole: those that work on whole states anyway, and those
#: whose divided results transformers would gather at once.
WHOLE = frozenset(
    {
        "replicate",
        "replicated_with_grad_allreduce",
        "mla_kv_a_proj",
        "colwise_gather_output",
        "colwise_rep",  # as older releases call it
        "rowwise_split_input",
        "embedding_rowwise",
        "local_params",
    }
)


class Plan:
    """One model's plan, and this rank's part of it.

    Args:
        ctx: The build context.
        model: Built, with transformers' own modules.

    Raises:
        ConfigError: Ranks shall divide it, and transformers has no plan, or heads do not come out
            even.
    """

    def __init__(self, ctx: BuildContext, model: PreTrainedModel) -> None:
        self._ctx, self._kinds = ctx, dict[str, str]()
        self._what = (
            f"tensor_parallel_size {ctx.size}: transformers' plan of {type(model).__name__}"
        )
        if ctx.size == 1:
            return
        self._kinds = dict(model._tp_plan or {})
        if not any(kind not in WHOLE for kind in self._kinds.values()):
            raise ConfigError(f"{self._what} divides nothing; leave it at 1, or {INSTEAD}")
        for option in ("num_attention_heads", "num_key_value_heads"):
            count = getattr(model.config.get_text_config(decoder=True), option, None)
            if isinstance(count, int):
                ctx.split(option.removeprefix("num_").replace("_", " "), Section(count))

    def divide(self, name: str, rows: int, columns: int) -> dict[str, Split]:
        """Return this rank's part of a matrix [rows, columns], as `Matrix` takes it.

        Raises:
            ConfigError: It cannot be divided so.
        """
        kind, split = self._kind(name), self._ctx.split
        match kind:
            case "colwise":
                return {"outputs": split(f"outputs of {name}", Section(rows))}
            case "packed_colwise":
                halves = Section(rows // 2), Section(rows // 2)
                return {"outputs": split(f"outputs of {name}", *halves)}
            case "rowwise":
                return {"inputs": split(f"inputs of {name}", Section(columns))}
        self._check(name, kind)
        return {}

    def check_rest(self, model: nn.Module, run: Run, ours: tuple[type[nn.Module], ...]) -> None:
        """Refuse a plan that divides what stays with transformers.

        Args:
            model: With modules of ours in the places of some.
            run: Of the first pass: layers of ours take the sinks that attention has.
            ours: Kinds of them.

        Raises:
            ConfigError: Names the module.
        """
        taken = {id(found.sinks) for found in run.found}
        left = [name for name, module in model.named_modules() if not isinstance(module, ours)]
        left += [name for name, tensor in model.named_parameters() if id(tensor) not in taken]
        for name in left:
            self._check(name, self._kind(name))

    def _check(self, name: str, kind: str | None) -> None:
        if kind is not None and kind not in WHOLE:
            raise ConfigError(
                f"{self._what} divides {name} ({kind}), which the engine does not; leave it at 1, "
                f"or {INSTEAD}"
            )

    def _kind(self, name: str) -> str | None:
        return self._kinds.get(re.sub(r"\d+", "*", name))
