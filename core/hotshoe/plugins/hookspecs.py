"""Every hook that a plugin may implement. This file and docs/reference/hooks.md list them alike.

A plugin is an entry point of group `hotshoe` whose object has functions marked
`@hotshoe.plugins.hookimpl`. Hooks run at start-up only. They hand back plain objects or lazy
`"module:attribute"` references, so that listing plugins imports no heavy library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from hotshoe.cli.command import CommandEntry
    from hotshoe.slots import Candidate

PROJECT = "hotshoe"
#: Version of the hook interface. Core serves plugins built for this version and the one before.
HOOK_API = 2

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def hotshoe_platforms() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Name platforms: `{"name": "module:PlatformClass"}`. Only a probed one is imported."""


@hookspec
def hotshoe_candidates(platform: str) -> Sequence[Candidate]:  # type: ignore[empty-body]
    """Offer slot candidates beside those of the platform itself: kernel packs, replacements."""


@hookspec
def hotshoe_slots() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Bring slots: `{"name": "module:SLOT"}`, each with a reference and a conformance suite.

    See `hotshoe.slots.Slot`.
    """


@hookspec
def hotshoe_models() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Name architectures: `{"LlamaForCausalLM": "module:build"}`.

    See `hotshoe.models.base.ModelBuilder`.
    """


@hookspec
def hotshoe_model_lengths() -> Mapping[str, int]:  # type: ignore[empty-body]
    """Say how many positions an architecture has where config.json leaves them out, as some
    published files do: `{"LlamaForCausalLM": 2048}`."""


@hookspec
def hotshoe_encoders() -> Mapping[str, int]:  # type: ignore[empty-body]
    """Name architectures whose steps take prompts whole, as their tokens see later ones, and say
    how many of the positions in config.json no token has: `{"BertModel": 0, "RobertaModel": 2}`."""


@hookspec
def hotshoe_model_impls() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Build architectures that no plugin describes: `{"library": "module:build"}`.

    Each is a `hotshoe.models.base.ModelBuilder` for whatever a library knows, a value of
    `--model-impl`. Where it is auto, the first by name serves what hook `hotshoe_models` lacks.
    """


@hookspec
def hotshoe_named_models() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Give short names to model directories: `{"demo": "/path/to/model"}`."""


@hookspec
def hotshoe_model_sources() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Name places that models are fetched from: `{"hub": "module:fetch"}`.

    See `hotshoe.models.source.ModelSource`. Asked for names that are no directory, in order.
    """


@hookspec
def hotshoe_adapter_resolvers() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Name what finds adapters that requests name: `{"hub": "module:find_adapter"}`.

    See `hotshoe.models.source.AdapterResolver`. Only those of `--lora-resolver` are imported.
    """


@hookspec
def hotshoe_model_files() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Read models that are files, by the ending of their names: `{"gguf": "module:FORMAT"}`.

    See `hotshoe.models.model_file.ModelFileFormat`.
    """


@hookspec
def hotshoe_quantizations() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Name methods of `--quantization`: `{"int8": "module:make"}`.

    Called without arguments, each makes a `hotshoe.layers.WeightFormat`.
    """


@hookspec
def hotshoe_weight_formats() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Name formats of quantized checkpoints, as their `quant_method`: `{"awq": "module:read"}`.

    Called with the checkpoint's `quantization_config`, each makes a `hotshoe.layers.WeightFormat`,
    or raises CheckpointError.
    """


@hookspec
def hotshoe_format_examples() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Prove weight formats: examples of what checkpoints hold: `{"awq": "module:examples"}`.

    Called with a `torch.Generator`, each yields objects with `config`, `tensors` and `weight`; see
    `hotshoe_conformance.formats.Example`. `hotshoe conformance` runs them end to end.
    """


@hookspec
def hotshoe_commands() -> Mapping[str, CommandEntry]:  # type: ignore[empty-body]
    """Add subcommands: `{"name": CommandEntry(...)}`; see `hotshoe.cli.command`."""


@hookspec
def hotshoe_grammars() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Name backends of structured output, best first: `{"llguidance": "module:Class"}`.

    See `hotshoe.grammar.GrammarBackend`.
    """


@hookspec
def hotshoe_logits_processors() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Name stages over the logits of a step: `{"name": "module:Class"}`.

    See `hotshoe.sampling.processors.LogitsProcessor`. Only those of `--logits-processors` are
    imported.
    """


@hookspec
def hotshoe_executors() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Name what runs the ranks of an engine: `{"ray": "module:function"}`.

    See `hotshoe.engine.start.executors.Executor`. Only a chosen one is imported.
    """


@hookspec
def hotshoe_proposers() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Name methods of speculation: `{"ngram": "module:Class"}`.

    See `hotshoe.speculation.Proposer`. Only a chosen one is imported.
    """


@hookspec
def hotshoe_heads() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Name methods of speculation whose head lies in a directory: `{"eagle3": "module:build"}`.

    See `hotshoe.models.base.HeadBuilder`. Only a chosen one is imported.
    """


@hookspec
def hotshoe_tool_parsers() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Name formats of tool calls: `{"hermes": "module:FORMAT"}`.

    See `hotshoe.text.parsing.ParserFormat`. Only a chosen one is imported, or all for "auto".
    """


@hookspec
def hotshoe_reasoning_parsers() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Name formats of reasoning sections: `{"qwen3": "module:FORMAT"}`, as for tool calls."""


@hookspec
def hotshoe_chat_templates() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Give chat templates to architectures: `{"LlamaForCausalLM": "module:TEMPLATE"}`.

    Each is the text of a template, for models whose directory has none.
    """


@hookspec
def hotshoe_server_extensions() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Add to the HTTP server: `{"name": "module:EXTENSION"}`; see `hotshoe_server.extensions`."""
