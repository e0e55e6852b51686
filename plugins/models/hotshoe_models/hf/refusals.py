"""What transformers' module trees cannot be run for, each refused by name before weights are read.

Only attention may look from one token at another, and only through the attention interface.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hotshoe.errors import CheckpointError
from hotshoe.models import ModelConfig
from hotshoe.models.composites import KEY
from hotshoe_models.hf import INSTEAD
from hotshoe_models.hf.attention import Run

#: Kinds of layers whose attention the engine has.
LAYER_TYPES = ("full_attention", "sliding_attention")
#: Heads, which are named beside their model.
ASSISTANTS = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
#: Rotations that depend on the longest text of a batch.
CHANGING = ("dynamic", "longrope")


def check_context(config: ModelConfig) -> None:
    """Refuse options that this path does not serve.

    Raises:
        CheckpointError: It is a file of another kind than a directory.
    """
    if config.file is not None:
        raise CheckpointError(
            f"{config.path}: transformers' code reads checkpoints of directories alone; give the "
            "directory that the checkpoint lies in"
        )


def read_config(config: ModelConfig) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
    """Return config.json as transformers reads it, and the class that it names.

    Raises:
        CheckpointError: transformers knows none such, or the file is malformed.
    """
    name, family = config.architecture, str(config.get("model_type"))
    if name in ASSISTANTS:
        raise CheckpointError(
            f"{name} makes drafts for a Gemma 4, and no text of its own; serve the Gemma 4 with "
            f'--speculative-config \'{{"method": "gemma4_assistant", "model": "{config.path}"}}\''
        )
    known = name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    kind = getattr(transformers, name, None) if known else None
    if kind is None:
        own = " It names code that the checkpoint brings, and the engine runs none."
        raise CheckpointError(
            f"transformers {transformers.__version__} has no causal language model of the name "
            f"{name!r}.{own if config.get('auto_map') else ''} Install a newer release that has "
            f"it, or {INSTEAD}"
        )
    if isinstance(config.get(KEY), Mapping):
        raise refusal(config, "has parts that see or hear")
    if family != kind.config_class.model_type:
        raise CheckpointError(
            f"config.json: model_type {family!r} does not belong to {name}, whose model_type is "
            f"{kind.config_class.model_type!r}"
        )
    try:
        return kind.config_class.from_dict(dict(config.values)), kind
    except Exception as error:
        raise CheckpointError(
            f"transformers refuses config.json of {name} ({type(error).__name__}: {error})"
        ) from error


def check_kind(
    config: ModelConfig, described: PreTrainedConfig, kind: type[PreTrainedModel]
) -> None:
    """Refuse classes that do more than attend through the interface, before one is built.

    Raises:
        CheckpointError: Names what the class does.
    """
    _refuse_first(
        config,
        (kind._is_stateful, "keeps a state that is no cache of keys and values"),
        (described.is_encoder_decoder, "has an encoder"),
        (bool(getattr(described, "add_cross_attention", False)), "has cross attention"),
        (not kind._supports_attention_backend, "has attention of its own"),
        *_of_layers(described),
    )


def check_model(config: ModelConfig, model: PreTrainedModel) -> None:
    """Refuse models whose modules are not those of a decoder.

    Raises:
        CheckpointError: Names the module.
    """
    base = getattr(model, model.base_model_prefix, None)
    inputs = inspect.signature(type(base).forward).parameters
    table, output = model.get_input_embeddings(), model.get_output_embeddings()
    mixing = next((n for n, m in model.named_modules() if isinstance(m, nn.Conv1d)), "")
    _refuse_first(
        config,
        (bool(mixing), f"looks at other tokens in {mixing}, which is a convolution"),
        ("position_ids" not in inputs, "takes no positions"),
        ("inputs_embeds" not in inputs, "takes no embeddings"),
        (not isinstance(table, nn.Embedding), "has no table of embeddings"),
        (type(output) is not nn.Linear, "has no output matrix"),
    )


def _refuse_first(config: ModelConfig, *reasons: tuple[bool, str]) -> None:
    for found, reason in reasons:
        if found:
            raise refusal(config, reason)


def _of_layers(described: PreTrainedConfig) -> list[tuple[bool, str]]:
    kinds = set(getattr(described, "layer_types", None) or ()) - set(LAYER_TYPES)
    rope = getattr(described, "rope_parameters", None) or {}
    nested = [value for value in rope.values() if isinstance(value, Mapping)]
    types: set[Any] = {entry.get("rope_type") for entry in (nested or [rope])}
    changing = sorted(str(t) for t in types if t in CHANGING)
    return [
        (bool(kinds), f"has layers of kind {', '.join(sorted(map(str, kinds)))}"),
        (bool(changing), f"rotates by rope_type {', '.join(changing)}, which texts change"),
    ]


def check_found(config: ModelConfig, model: PreTrainedModel, run: Run, own: range) -> None:
    """Refuse models whose layers did not all attend through the interface in the first pass.

    Raises:
        CheckpointError: Some did not, or a layer's window is unknown.
    """
    described = model.config
    count, wanted = len(run.found), len(own)
    if count != wanted:
        raise refusal(config, f"attends through the interface in {count} of {wanted} layers")
    every = ["sliding_attention"] * own.stop if getattr(described, "sliding_window", None) else []
    kinds = getattr(described, "layer_types", None) or every  # whose masks alone may know of it
    for found, kind in zip(run.found, kinds[own.start :], strict=False):
        if kind == "sliding_attention" and found.window is None:
            raise refusal(config, "has windows that attention is not told of")


def refusal(config: ModelConfig, reason: str) -> CheckpointError:
    """Make the error for a model that cannot run as transformers' code."""
    return CheckpointError(
        f"{config.architecture} {reason}, so that transformers' code of it cannot run over the "
        f"engine's cache; {INSTEAD}"
    )
