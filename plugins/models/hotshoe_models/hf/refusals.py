"""What transformers' module trees cannot be run for, each refused by name before weights are read.

Only attention may look from one token at another, and only through the attention interface.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from hotshoe.errors import CheckpointError
from hotshoe.models import ModelConfig
from hotshoe_models.hf import INSTEAD
from hotshoe_models.hf.attention import Run
from hotshoe_models.hf.text_parts import whole_values

#: Kinds of layers whose attention the engine has.
LAYER_TYPES = ("full_attention", "sliding_attention")
#: Heads, which are named beside their model.
ASSISTANTS = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
#: Rotations that depend on the longest text of a batch.
CHANGING = ("dynamic", "longrope")
STATE = "keeps a state that is no cache of keys and values"
#: transformers' tables of classes that write text, by their names.
TABLES = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SEQ_TO_SEQ_CAUSAL_LM")
TABLES += ("SPEECH_SEQ_2_SEQ",)


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
    kind = getattr(transformers, name, None) if name in _writers() else None
    if kind is None:
        own = " It names code that the checkpoint brings, and the engine runs none."
        raise CheckpointError(
            f"transformers {transformers.__version__} has no class of the name {name!r} that "
            f"writes text.{own if config.get('auto_map') else ''} Install a newer release that "
            f"has it, or {INSTEAD}"
        )
    if family != kind.config_class.model_type:
        raise CheckpointError(
            f"config.json: model_type {family!r} does not belong to {name}, whose model_type is "
            f"{kind.config_class.model_type!r}"
        )
    try:
        return kind.config_class.from_dict(whole_values(config.values)), kind
    except Exception as error:
        raise CheckpointError(
            f"transformers refuses config.json of {name} ({type(error).__name__}: {error})"
        ) from error


def _writers() -> set[str]:
    """Return the names of all classes that write text; a family may have several."""
    found: set[str] = set()
    for table in TABLES:
        names = getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES", {})
        for entry in names.values():
            found |= {entry} if isinstance(entry, str) else set(entry)
    return found


def check_kind(
    config: ModelConfig, described: PreTrainedConfig, kind: type[PreTrainedModel]
) -> None:
    """Refuse classes that do more than attend through the interface, before one is built.

    Raises:
        CheckpointError: Names what the class does.
    """
    _refuse_first(
        config,
        (kind._is_stateful, STATE),
        (described.is_encoder_decoder, "has an encoder"),
        (bool(getattr(described, "add_cross_attention", False)), "has cross attention"),
        (not kind._supports_attention_backend, "has attention of its own"),
        *_of_layers(described.get_text_config(decoder=True)),
    )


def check_model(config: ModelConfig, model: PreTrainedModel) -> None:
    """Refuse models whose modules are not those of a decoder.

    Raises:
        CheckpointError: Names the module.
    """
    base, text = getattr(model, model.base_model_prefix, None), model.get_decoder()
    inputs = {} if base is None else inspect.signature(type(base).forward).parameters
    table, output = model.get_input_embeddings(), model.get_output_embeddings()
    by_ids = getattr(model.config.get_text_config(decoder=True), "hidden_size_per_layer_input", 0)
    padded = any(hasattr(m, "create_position_ids_from_input_ids") for m in model.modules())
    changing = ", ".join(_changing(text))
    mixing = next((n for n, m in model.named_modules() if isinstance(m, nn.Conv1d)), "")
    _refuse_first(
        config,
        (base is None, "has no base model"),
        (getattr(text, "_is_stateful", False), STATE),
        (bool(changing), f"rotates by rope_type {changing}, which texts change"),
        (bool(mixing), f"looks at other tokens in {mixing}, which is a convolution"),
        ("position_ids" not in inputs, "takes no positions"),
        (bool(by_ids), "looks up an input for each layer by the ids of tokens"),
        (padded, "counts positions from those of padding"),
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
    return [(bool(kinds), f"has layers of kind {', '.join(sorted(map(str, kinds)))}")]


def _changing(model: nn.Module) -> list[str]:
    """Name the rotations of a model that texts change, as its modules say: a file may call a
    rotation so that a module does not compute so."""
    own = [getattr(module, "rope_type", "") for module in model.modules()]
    types = [t for one in own for t in (one.values() if isinstance(one, Mapping) else [one])]
    return sorted({t for t in types if t in CHANGING})


def check_found(config: ModelConfig, model: PreTrainedModel, run: Run, own: range) -> None:
    """Refuse models whose layers did not all attend through the interface in the first pass.

    Raises:
        CheckpointError: Some did not, or a layer's window is unknown.
    """
    described = model.config.get_text_config(decoder=True)
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
