"""Modules that take the places of transformers' own, so that slots and quantization apply.

In the first pass, when no weight is there, each returns zeros of the right shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hotshoe.layers import BuildContext, Embedding, Holder, Linear, Logits, Matrix, Place
from hotshoe.slots import renewed
from hotshoe_models.hf.attention import Run
from hotshoe_models.hf.plan import Plan
from hotshoe_models.hf.renames import Stacked

#: Modules that choose experts, or otherwise are too small to quantize.
ROUTERS = re.compile(r"(^|[._])(gate|router)(\.|$)|router\.|shared_expert_gate$")


class LinearModule(nn.Module):
    """A matrix behind slot `linear`, or the output matrix; the sizes are this rank's."""

    def __init__(self, layer: Linear | Logits, sizes: tuple[int, int], run: Run) -> None:
        super().__init__()
        self._layer, self._run = layer, run
        self.in_features, self.out_features = sizes

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        shape = (*x.shape[:-1], self.out_features)
        if self._run.batch is None:
            if x.shape[-1] != self.in_features:
                raise ValueError(f"a matrix of {self.in_features} inputs gets {x.shape[-1]}")
            return x.new_zeros(shape)
        return self._layer(x.reshape(-1, self.in_features)).view(shape)


def replace_linears(ctx: BuildContext, model: nn.Module, run: Run, plan: Plan) -> None:
    """Let slot `linear` compute all plain matrices of a model, of each this rank's part.

    The model's routers stay out of quantization at load.
    """
    found = [(name, m) for name, m in model.named_modules() if type(m) in (nn.Linear, Conv1D)]
    for name, module in found:
        turned = isinstance(module, Conv1D)
        rows, columns = reversed(module.weight.shape) if turned else module.weight.shape
        quantize = not (ctx.format.online and ROUTERS.search(name))
        matrix = Matrix(
            ctx,
            [(name, rows)],
            columns,
            bias=module.bias is not None,
            quantize=quantize,
            transposed=turned,
            **plan.divide(name, rows, columns),
        )
        sizes = matrix.spec.in_features, matrix.spec.out_features
        put(model, name, LinearModule(Linear(ctx, matrix), sizes, run))


def replace_output(ctx: BuildContext, model: nn.Module, name: str, tied: str, run: Run) -> None:
    """Let our output matrix make logits.

    Args:
        name: Of the module.
        tied: Of the embedding whose table it shares; "" for none.
    """
    module = model.get_submodule(name)
    assert isinstance(module, nn.Linear)
    rows, columns = module.weight.shape
    bias = module.bias is not None
    shared = getattr(model, "_tied_weights_keys", None) or {}
    if isinstance(shared, Mapping) and f"{name}.bias" in shared:  # files have it once, as that
        owner, _, leaf = shared[f"{name}.bias"].rpartition(".")
        model.get_submodule(owner)._parameters[leaf] = None
        ctx.weights.rename(rf"^{re.escape(owner)}\.{leaf}$", f"{tied or name}.bias")
    logits = Logits(ctx, tied or name, rows, columns, bias=bias, adapted=name)
    put(model, name, LinearModule(logits, (columns, rows), run))


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module into the place of another."""
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


def replace_table(ctx: BuildContext, model: nn.Module, name: str) -> Embedding | nn.Module:
    """Return what looks up vectors of tokens: our layer, if the module does nothing else."""
    table = model.get_submodule(name)
    if type(table) is not nn.Embedding:
        return table
    put(model, name, nn.Module())  # so that nobody asks for its weight a second time
    return Embedding(ctx, name, table.num_embeddings, table.embedding_dim, adapts=True)


def expect_rest(
    ctx: BuildContext,
    model: nn.Module,
    in_float32: frozenset[str],
    stacked: Sequence[Stacked] = (),
) -> None:
    """Ask for all weights that no layer of ours has; each lies as its module wants it.

    Args:
        in_float32: Parts of names whose tensors stay in float32.
        stacked: Tensors that the checkpoint has expert by expert.
    """
    for prefix, module in model.named_modules():
        persistent = [n for n in module._buffers if n not in module._non_persistent_buffers_set]
        for leaf in [*module._parameters, *persistent]:
            tensor = getattr(module, leaf)
            name = f"{prefix}.{leaf}".removeprefix(".")
            if tensor is None:
                continue
            kept = any(part in name for part in in_float32)
            rest = _Rest(module, leaf, torch.float32 if kept else tensor.dtype, ctx.device)
            rest.expect(ctx, name, tuple(tensor.shape), stacked)
            ctx.weight_bytes.append(rest.nbytes)


class _Rest:
    """One tensor of a module."""

    def __init__(self, module: nn.Module, leaf: str, dtype: torch.dtype, device: str) -> None:
        self._module, self._leaf, self._place = module, leaf, (device, dtype)
        self._held: Tensor | None = None

    def expect(
        self, ctx: BuildContext, name: str, shape: tuple[int, ...], stacked: Sequence[Stacked]
    ) -> None:
        """Ask for the tensor, or for its parts."""
        holder = Holder("module", "transformers", ctx.dtype, self.state)
        for stack in stacked:
            if name.endswith(stack.target):
                for expert in range(shape[0]):
                    self._expect_expert(ctx, holder, stack.parts(name, expert), expert, shape)
                return
        place = Place(holder, self._leaf, (0, shape[0] if shape else 1), ())
        ctx.weights.expect(name, shape, self.take, place=place)

    def _expect_expert(
        self,
        ctx: BuildContext,
        holder: Holder,
        names: list[str],
        expert: int,
        shape: tuple[int, ...],
    ) -> None:
        rows = shape[1] // len(names)
        for i, name in enumerate(names):
            span = slice(i * rows, (i + 1) * rows)
            place = Place(holder, f"{self._leaf}.{expert}", (span.start, span.stop), ())
            sink = partial(self._take_part, shape, expert, span)
            ctx.weights.expect(name, (rows, *shape[2:]), sink, place=place)

    def _take_part(self, shape: tuple[int, ...], expert: int, rows: slice, tensor: Tensor) -> None:
        """Keep one expert's matrix."""
        if self._held is None:
            self._held = torch.empty(shape, device=self._place[0], dtype=self._place[1])
            self._put()
        self._held[expert, rows] = tensor.to(*self._place)

    def nbytes(self) -> int:
        """Return the tensor's bytes, once it is there."""
        return 0 if self._held is None else self._held.nbytes

    def take(self, tensor: Tensor) -> None:
        """Keep values, where the old ones lie if there are any."""
        self._held = renewed(self._held, tensor.to(*self._place, copy=True))
        self._put()

    def _put(self) -> None:
        if self._leaf in self._module._buffers:
            self._module._buffers[self._leaf] = self._held
        else:
            self._module._parameters[self._leaf] = nn.Parameter(self._held, requires_grad=False)

    def state(self) -> dict[str, Tensor]:
        """Return the tensor by its name in the module."""
        return {} if self._held is None else {self._leaf: self._held}
