"""Brings an engine core up, the same way in every process: setup, tokenizer, core, description.

`Engine`, the engine thread and the engine process start here. Front ends that only connect take
the description (`EngineInfo`) and load the tokenizer that it names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotshoe.config import EngineConfig
from hotshoe.engine.client import DecisionInfo, EngineInfo
from hotshoe.engine.core.engine_core import EngineCore
from hotshoe.engine.start.ahead import ranks_ahead
from hotshoe.engine.start.places import find_model, find_tokenizer, read_tokenizer
from hotshoe.engine.start.processors import declared_arguments
from hotshoe.engine.start.setup import EngineSetup, prepare
from hotshoe.engine.start.trees import chained
from hotshoe.engine.wire.connection import MAX_MESSAGE_BYTES
from hotshoe.host import uncollected
from hotshoe.lazy import resolve_lazy
from hotshoe.models.modules import read_projection
from hotshoe.models.pooling import read_classifier
from hotshoe.models.sentences import read_instructions
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import blaming_plugin
from hotshoe.slots import Decision
from hotshoe.slots.show import show_spec, show_verdict
from hotshoe.text.chat_template import read_template
from hotshoe.text.late import read_late
from hotshoe.text.tokenizer import Tokenizer
from hotshoe.text.tokenizer_files import json_object
from hotshoe.types.instructions import Instructions

_log = logging.getLogger(__name__)
#: The hook that names templates of models that have none.
TEMPLATES = "hotshoe_chat_templates"


@dataclass(frozen=True, slots=True)
class Booted:
    """A core that can step, and what a front end needs beside it."""

    core: EngineCore
    tokenizer: Tokenizer | None
    info: EngineInfo


@uncollected()
def boot(config: EngineConfig, plugins: PluginManager | None = None) -> Booted:
    """Bring an engine core up.

    Raises:
        UserError: It cannot work; the message says why.
    """
    with ranks_ahead(config):
        return _boot(config, plugins)


def _boot(config: EngineConfig, plugins: PluginManager | None) -> Booted:
    begin = time.perf_counter()
    setup = prepare(config, plugins)
    if why := chained(config, setup):
        _log.warning("drafts are %s", why)
    prepared = time.perf_counter()
    tokenizer = load_tokenizer(setup.config, setup.model_config.path, setup.plugins)
    setup = _with_eos(setup, tokenizer)
    tokenized = time.perf_counter()
    startup = {"resolve configuration": prepared - begin, "load tokenizer": tokenized - prepared}
    if setup.config.revision is not None and setup.config.load_format != "dummy":
        find_model(setup.config, setup.plugins, weights=True)
        startup["fetch weights"] = time.perf_counter() - tokenized
    core = EngineCore(setup)
    startup |= core.workers.startup
    return Booted(core, tokenizer, _describe(core, tokenizer, startup))


def load_tokenizer(
    config: EngineConfig, model_path: Path, plugins: PluginManager | None = None
) -> Tokenizer | None:
    """Load the tokenizer that a configuration names, else the model's; None if it wants none.

    Args:
        config: Of the engine.
        model_path: The model directory or file.
        plugins: Default: those installed.

    Raises:
        CheckpointError: There is none, or it is malformed.
        ConfigError: The tokenizer's name is none, or the chat template is malformed or missing.
    """
    if config.skip_tokenizer_init:
        return None
    if plugins is None:
        plugins = PluginManager(disabled=config.disable_plugins)
    named = find_tokenizer(config, plugins)
    found = read_tokenizer(named.path if named else model_path, plugins)
    if config.chat_template is not None:
        found.chat_templates = {"default": read_template(config.chat_template)}
    elif not found.chat_templates:
        found.chat_templates = _offered_template(model_path, plugins)
    return found


def _offered_template(model_path: Path, plugins: PluginManager) -> dict[str, str]:
    """Return the template that a plugin has for the architecture of a model directory, if any."""
    match json_object(model_path / "config.json").get("architectures"):
        case [str(name), *_] if name in plugins.mapping(TEMPLATES):
            with blaming_plugin(plugins, TEMPLATES, name):
                return {"default": resolve_lazy(plugins.pick("chat template", name, TEMPLATES))}
    return {}


def _with_eos(setup: EngineSetup, tokenizer: Tokenizer | None) -> EngineSetup:
    """Join the end-of-sequence ids of the tokenizer to those of the model."""
    ids = (*setup.model_config.eos_token_ids, *(tokenizer.eos_token_ids if tokenizer else ()))
    joined = tuple(dict.fromkeys(ids))
    return replace(setup, model_config=replace(setup.model_config, eos_token_ids=joined))


def _describe(
    core: EngineCore, tokenizer: Tokenizer | None, startup: Mapping[str, float]
) -> EngineInfo:
    setup, workers, found = core.setup, core.workers, core.info
    pooling = setup.pooling if "embed" in found.tasks else None
    classifier = None
    if {"classify", "token_classify"} & {*found.tasks}:
        classifier = replace(
            read_classifier(setup.model_config),
            kind=found.class_pooling,
            step_token=found.step_token,
        )
    projection = read_projection(setup.model_config)
    by_token = projection is not None and projection.by_token
    path = setup.model_config.path
    return EngineInfo(
        config=setup.config,
        model_path=str(path),
        vocab_size=found.vocab_size,
        num_blocks=sum(workers.num_blocks),
        eos_token_ids=setup.model_config.eos_token_ids,
        facts=setup.selector.facts,
        changes=setup.changes,
        decisions=tuple(map(_describe_decision, found.decisions)),
        startup=startup,
        memory=workers.memory,
        report={name: _plain(value) for name, value in found.report.items()},
        broken_plugins={r.name: r.error for r in setup.plugins.records if r.error},
        sampling_defaults=setup.sampling_defaults,
        has_logits=found.has_logits,
        tasks=tuple(_served(core, 0 if classifier is None else len(classifier.labels))),
        hidden_size=found.hidden_size,
        vector_size=found.hidden_size if projection is None or by_token else projection.size,
        token_size=projection.size if projection is not None and by_token else found.hidden_size,
        late=read_late(path, tokenizer) if by_token else None,
        instructions=read_instructions(path) if pooling else Instructions(),
        pooling=pooling,
        classifier=classifier,
        arguments=declared_arguments(setup.processors),
    )


def _served(core: EngineCore, num_labels: int) -> Iterator[str]:
    """Yield the tasks of a worker that are served: embeddings where somebody says how these are
    made, and vectors of tokens where those of all prompts that one step may end fit into a
    message. A prompt of an encoder is in one step, and one of a decoder in several."""
    config, found = core.setup.config, core.info
    whole = core.workers.num_blocks == ()
    tokens = config.max_num_batched_tokens if whole else config.max_num_seqs * config.max_model_len
    sizes = {"token_embed": found.hidden_size, "token_classify": num_labels}
    for task in found.tasks:
        fits = 4 * tokens * sizes.get(task, 0) <= MAX_MESSAGE_BYTES // 2
        if fits and (task != "embed" or core.setup.pooling is not None):
            yield task


def _describe_decision(decision: Decision) -> DecisionInfo:
    return DecisionInfo(
        decision.slot,
        show_spec(decision.spec),
        decision.chosen,
        decision.native,
        decision.reason,
        {name: show_verdict(verdict) for name, verdict in decision.others},
    )


def _plain(value: object) -> Any:
    return value if isinstance(value, (int, float, str)) else str(value)
