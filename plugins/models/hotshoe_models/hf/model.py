"""A causal language model that is transformers' own module tree, over our cache and our slots.

Attention goes through the attention interface (`hotshoe_models.hf.attention`), matrices through
slot `linear` (`hotshoe_models.hf.modules`), experts of the usual form through slot `moe`
(`hotshoe_models.hf.experts`). Norms, rotation and all else are transformers' code. Ranks divide
what transformers' own plan divides (`hotshoe_models.hf.plan`).
A step is one row of tokens of all its requests; only attention looks from one token at another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import PreTrainedConfig, PreTrainedModel

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext, ForwardBatch
from hotshoe.models import ModelConfig
from hotshoe.models.base import EMBED, GENERATE
from hotshoe_models.hf import INSTEAD
from hotshoe_models.hf.attention import NAME, Run, build_layers
from hotshoe_models.hf.experts import (
    ExpertsModule,
    are_experts,
    replace_experts,
    watch_choices,
)
from hotshoe_models.hf.modules import (
    LinearModule,
    expect_rest,
    put,
    replace_linears,
    replace_output,
    replace_table,
)
from hotshoe_models.hf.plan import Plan
from hotshoe_models.hf.refusals import (
    check_context,
    check_found,
    check_kind,
    check_model,
    read_config,
)
from hotshoe_models.hf.renames import rename_weights
from hotshoe_models.hf.stages import Passed, cut
from hotshoe_models.hf.text_parts import drop_other_parts, text_alone
from hotshoe_models.hf.waits import watch_waits

#: For experts of another form: of transformers' own implementations, the one that waits for no
#: result on the host.
EXPERTS = "grouped_mm"


class TransformersModel:
    """See `hotshoe.models.base.Model`.

    Args:
        config: Of any causal architecture that transformers has.
        ctx: The build context.

    Raises:
        ConfigError: An option cannot be served.
        CheckpointError: The architecture cannot run so, or config.json does not describe it.
    """

    def __init__(self, config: ModelConfig, ctx: BuildContext) -> None:
        check_context(config)
        described, kind = read_config(config)
        check_kind(config, described, kind)
        model = _build(kind, described, ctx.torch_dtype)
        drop_other_parts(ctx, model)
        check_model(config, model)
        self._run, self._base = Run(), getattr(model, model.base_model_prefix)
        names = {module: name for name, module in model.named_modules()}
        table = model.get_input_embeddings()
        output = names[model.get_output_embeddings()]
        tied = names[table] if described.tie_word_embeddings else ""
        self.hidden_size = table.embedding_dim
        self.tasks = frozenset({GENERATE, EMBED})
        stacked = rename_weights(ctx, model)
        own = cut(ctx, model, output)
        self.vocab_size = int(model.get_submodule(output).weight.shape[0])
        if ctx.stage.is_last:
            replace_output(ctx, model, output, tied, self._run)
        else:
            put(model, output, Passed(model.get_submodule(output)))
        if tied:
            ctx.weights.ignore([rf"^{output}\.weight$"])
            ctx.weights.rename(rf"^{output}\.bias$", f"{tied}.bias")  # the matrix has that name
        plan = Plan(ctx, model)
        replace_linears(ctx, model, self._run, plan)
        self._table = replace_table(ctx, model, names[table]) if ctx.stage.is_first else None
        self._scale = float(getattr(table, "scalar_embed_scale", 1.0))
        passed, waits = self._first_pass(model, config, ctx.torch_dtype, own)
        ctx.waits += waits[:1]
        build_layers(ctx, model, self._run)
        replace_experts(ctx, model, self._run, stacked)
        plan.check_rest(model, self._run, (LinearModule, ExpertsModule))
        expect_rest(ctx, model, frozenset(model._keep_in_fp32_modules_strict), stacked)
        if ctx.stage.size == 1:
            ctx.weights.keep_names()
        ctx.weights.ignore(model._keys_to_ignore_on_load_unexpected or ())
        ctx.weights.ignore([r"\.rotary_emb\.inv_freq$"])
        for module in model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(ctx.device)
        self._head = model
        setattr(model, model.base_model_prefix, _Given(type(passed)))

    def _first_pass(
        self, model: PreTrainedModel, config: ModelConfig, dtype: torch.dtype, own: range
    ) -> tuple[Any, list[str]]:
        """Run two tokens through modules without weights, to see who attends, and what waits."""
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    zero = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
                    module._parameters[name] = nn.Parameter(zero, requires_grad=False)
            module.hotshoe_run = self._run  # type: ignore[assignment]
            if are_experts(module):
                watch_choices(module, self._run)
        hidden = torch.zeros(1, 2, self.hidden_size, dtype=dtype)
        try:
            with torch.inference_mode(), watch_waits() as waits:
                passed = self._forward(hidden, torch.arange(2))
                prefix = model.base_model_prefix
                setattr(model, prefix, _Given(type(passed)))
                model(inputs_embeds=passed.last_hidden_state, use_cache=False, return_dict=True)
                setattr(model, prefix, self._base)
        except Exception as error:
            raise CheckpointError(
                f"transformers' code of {config.architecture} cannot run over modules of the "
                f"engine ({type(error).__name__}: {error}); {INSTEAD}"
            ) from error
        for module in model.modules():
            module.__dict__.pop("forward", None)
        check_found(config, model, self._run, own)
        return passed, [f"transformers' code of {config.architecture} ({at})" for at in waits]

    def _forward(self, hidden: Tensor, positions: Tensor) -> Any:
        return self._base(
            inputs_embeds=hidden, position_ids=positions[None], use_cache=False, return_dict=True
        )

    def embed(self, ids: Tensor) -> Tensor:
        """Return [num_tokens, hidden_size] for ids [num_tokens] int32."""
        assert self._table is not None, "the first stage embeds"
        return self._table(ids)

    def scale_embeddings(self, rows: Tensor) -> Tensor:
        """Scale rows [n, hidden_size] of the table as `embed` does."""
        return rows if self._scale == 1.0 else rows * self._scale

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """Return the final normed hidden states of the tokens at `batch.outputs_at`.

        Before the last stage they are what the next stage's layers take.
        """
        self._run.batch = batch
        states = self._forward(hidden[None], batch.positions.long()).last_hidden_state[0]
        return states if batch.outputs_at is None else states[batch.outputs_at]

    def head(self, hidden: Tensor, task: str) -> Tensor:
        """Return [n, vocab_size] float32, or the hidden states themselves.

        The model's own code runs for it, which may scale logits or cap them.
        """
        if task == EMBED:
            return hidden.float()
        made = self._head(inputs_embeds=hidden[None], use_cache=False, return_dict=True)
        return made.logits[0].float()


class _Given(nn.Module):
    """Stands for all layers of a model whose output is there already."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self._kind = kind

    def forward(self, *unused: None, inputs_embeds: Tensor, **options: Any) -> Any:
        return self._kind(last_hidden_state=inputs_embeds)

    @property
    def decoder(self) -> _Given:
        """What OPT's head calls in the model's place."""
        return self


def _build(
    kind: type[PreTrainedModel], described: PreTrainedConfig, dtype: torch.dtype
) -> PreTrainedModel:
    """Build the tree with parameters that take no memory.

    Raises:
        CheckpointError: transformers cannot.
    """
    try:
        with _without_memory():
            model = kind._from_config(
                described, dtype=dtype, attn_implementation=text_alone(described, NAME)
            )
        for part in model.modules():
            if isinstance(part, PreTrainedModel) and part._can_set_experts_implementation():
                part.set_experts_implementation(EXPERTS)
    except Exception as error:
        raise CheckpointError(
            f"transformers cannot build {kind.__name__} from config.json "
            f"({type(error).__name__}: {error}); correct the file"
        ) from error
    return model.eval()


class _Building(threading.local):
    """Whether parameters that this thread registers have a shape alone."""

    without_memory = False


_BUILDING = _Building()


def _without_values(
    module: nn.Module, name: str, parameter: nn.Parameter | None
) -> nn.Parameter | None:
    if parameter is None or not _BUILDING.without_memory:
        return None
    return nn.Parameter(parameter.to("meta"), requires_grad=False)


# Once and for good: another thread may be going through all hooks when one comes or goes.
register_module_parameter_registration_hook(_without_values)


@contextmanager
def _without_memory() -> Iterator[None]:
    """Let parameters that this thread registers have a shape, and no values."""
    _BUILDING.without_memory = True
    try:
        yield
    finally:
        _BUILDING.without_memory = False
