"""Write what is generated from the code: pages of docs/reference and the frozen public surface.

`make reference` runs it; tests/architecture fails when a file here is not what it would write, so
that every change of a flag, field, hook or slot is seen in a diff.
"""

import argparse
import inspect
import itertools
import re
import sys
import textwrap
import typing
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import FunctionType
from typing import Any

import hotshoe
from hotshoe import LLM, AsyncEngine, GrammarSpec, TextPrompt, TokensPrompt, errors
from hotshoe.cli.main import HOOK
from hotshoe.cli.options import ENGINE_GROUPS, add_engine_flags, add_sampling_flags
from hotshoe.cli.parser import Parser
from hotshoe.config import EngineConfig
from hotshoe.engine.api.pooled import PoolingVerbs
from hotshoe.engine.client import EngineClient, EngineControl, EngineStatus, EngineWeights
from hotshoe.lazy import resolve_lazy
from hotshoe.platform import (
    Absent,
    Available,
    Broken,
    Change,
    DeviceFacts,
    MemoryBudget,
    Platform,
    Proof,
    Rehearsing,
    Target,
)
from hotshoe.plugins import PluginManager, hookspecs
from hotshoe.slots import (
    SLOTS,
    Candidate,
    KVLayout,
    QuantSpec,
    Verdict,
    accept,
    mixers,
    operations,
    refuse,
    step,
)
from hotshoe.text.output_processor import RequestUpdate, SequenceUpdate
from hotshoe.types import (
    CompletionOutput,
    FinishReason,
    RequestOutput,
    RequestTiming,
    SamplingParams,
    TokenLogprobs,
)
from hotshoe_server.endpoints import ENDPOINTS, OPTIONAL
from hotshoe_server.vllm_flags import FLAGS, SAME, VALUES
from hotshoe_server.vllm_short import SHORT

ROOT = Path(__file__).resolve().parent.parent
#: What argparse calls the arguments of no group of ours.
PLAIN_TITLES = ("positional arguments", "options")
NOTE = "<!-- Written by tools/make_reference.py; `make reference` writes it anew. -->"
PLATFORM_HEAD = """\
The contract of a platform package, in `hotshoe.platform`;
[Write a platform](../how-to/write-a-platform.md) leads through it. `probe` and `facts` have to be
written, all else has a default. What a platform offers is in [Slots](slots.md).

Core calls `probe`, `dtype_for`, `resolve`, `take_part` where there are several devices,
`candidates`, `facts`, `create_worker`, `activate`, and `memory_budget` when the weights are loaded.
`hotshoe platforms` calls `probe` and `facts`. `hotshoe explain` takes no device: it never calls
`activate`, and asks `memory_budget` without.""".split("\n")
PYTHON_HEAD = """\
An engine inside a program: `LLM` waits for its answers, `AsyncEngine` is for asyncio. Options are
[the configuration](config.md), `LLM("demo", max_model_len=512)`. What is imported from `hotshoe`:
`LLM`, `AsyncEngine`, `EngineConfig`, `SamplingParams`, `GrammarSpec`, `TextPrompt`, `TokensPrompt`,
`RequestOutput`; the others are what calls return.

A call without `SamplingParams` takes the defaults of the model's authors (`llm.sampling_defaults`).
`SamplingParams` that are given are taken as they are, with their own defaults for what they leave
open: 16 tokens, temperature 1.

Updates of `AsyncEngine` are what a step brought:

```python
import asyncio

from hotshoe import AsyncEngine, EngineConfig, SamplingParams

async def main() -> None:
    engine = AsyncEngine(EngineConfig(model="demo"))
    try:
        async for update in engine.generate("Once", SamplingParams(max_tokens=32)):
            print(update.sequences[0].new_text, end="", flush=True)
    finally:
        engine.close()

asyncio.run(main())
```

[From vLLM](from-vllm.md#python) lists what has another name there.""".split("\n")

VLLM_HEAD = """\
`hotshoe serve` takes a command line of `vllm serve`: replace the first two words. It rewrites
vLLM's flags before it reads them. A flag without effect gets a line of warning. If Hotshoe cannot
honor a flag, the start ends with exit code 2 and a message that names the remedy. These work, too:
underscores, `-tp=2`, `32k` (thousands), `32K` (of 1,024), `auto`, several words after a list's
flag, and lists as JSON. A YAML file of `--config` may have names of vLLM's flags beside
[Hotshoe's own](cli.md). If both name one option, Hotshoe's own wins.

This page lists flags first, then [endpoints](#endpoints), [metrics](#metrics),
[environment variables](#environment-variables) and [Python](#python).

`vllm run-batch` is [`hotshoe run-batch MODEL`](../how-to/run-a-batch.md), with the same `-i` and
`-o`. vLLM ignores fields of requests that it does not know. Hotshoe does so with
`--ignore-unknown-fields`, and refuses such requests otherwise. Control tokens in a message are
plain text here, unless the server has `--allow-special-tokens-in-text`. vLLM reads them as control
tokens.""".split("\n")
#: Endpoints of vLLM, in groups, and what stands for those that are not here.
VLLM_ENDPOINTS = {
    "": """/abort_requests /classify /detokenize /health /inference/v1/generate /invocations
        /is_paused /is_sleeping /load /metrics /pause /ping /pooling /rerank /reset_prefix_cache
        /resume /score /server_info /sleep /start_profile /stop_profile
        /tokenize /tokenizer_info /update_weights
        /v1/chat/completions /v1/chat/completions/render /v1/completions /v1/completions/render
        /v1/embeddings /v1/load_lora_adapter /v1/messages /v1/messages/count_tokens /v1/models
        /v1/rerank /v1/responses /v1/score /v1/unload_lora_adapter /v2/rerank /version /wake_up""",
    "speech is not served": "/v1/audio/transcriptions /v1/audio/translations /v1/realtime",
    "`/update_weights` names files, and answers when they are in use": """/finish_weight_update
        /init_weight_transfer_engine /start_draft_weight_update /start_weight_update
        /update_weight_version /weight_checker /weight_info""",
    "`/server_info` has the configuration": "/get_world_size",
    "the server starts a new engine when one dies (`--engine-restarts`)": """/fault_tolerance/apply
        /fault_tolerance/status""",
    "a rank takes no code from outside": "/collective_rpc",
    "items of other kinds are not served": "/reset_encoder_cache /reset_mm_cache",
    "the number of ranks is fixed": "/is_scaling_elastic_ep /scale_elastic_ep",
}
#: Names in Python that differ.
VLLM_PYTHON = {
    "argument `sampling_params` of `generate` and `chat`": "`params`",
    'prompts `{"prompt": text}`, `{"prompt_token_ids": ids}`, `{"prompt_embeds": rows}`': (
        "`text` or `TextPrompt(text)`, `TokensPrompt(ids)`, `EmbedsPrompt(rows)`"
    ),
    "`llm.chat(messages, chat_template_kwargs={...})`": "the variables are arguments of `chat`",
    "`SamplingParams(structured_outputs=StructuredOutputsParams(json=schema))`": (
        "`SamplingParams(grammar=GrammarSpec.json_schema(schema))`"
    ),
    "`lora_request=LoRARequest(name, 1, path)`": (
        "`llm.load_adapter(name, path)`, then `SamplingParams(adapter=name)`"
    ),
    "`output.outputs[0].logprobs[i][token_id].logprob`": (
        "`logprobs[i]` is a `TokenLogprobs` with `token_ids`, `logprobs` and `rank`"
    ),
    "`llm.embed(texts)[0].outputs.embedding`": "`llm.embed(texts)[0].embedding`",
    "`llm.classify(texts)[0].outputs.probs`": "`llm.classify(texts)[0].probs`",
    "`llm.score(query, documents)[0].outputs.score`": "`llm.score(query, documents)[0]`",
    "`llm.encode`": "`llm.embed`, `llm.classify`; no vector for each token",
    "`llm.get_tokenizer()`": "`llm.tokenizer`",
    "`llm.get_default_sampling_params()`": "`SamplingParams(**llm.sampling_defaults)`",
    "`AsyncLLM`, `AsyncLLMEngine.from_engine_args`": "`AsyncEngine(EngineConfig(...))`",
    "`llm.collective_rpc`, `llm.apply_model`": "`llm.update_weights`; no other code reaches a rank",
    "`use_tqdm`": "there are no bars",
}
#: Bases whose methods are documented with those of the classes that have them.
MIXED_IN = (PoolingVerbs,)
#: Endpoints that extensions of the server bring.
EXTENSIONS = {"/metrics", "/start_profile", "/stop_profile"}
#: Environment variables of vLLM and of its libraries.
VLLM_VARIABLES = {
    "CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES": "the same, read by the driver",
    "DO_NOT_TRACK, VLLM_NO_USAGE_STATS": "Hotshoe reports to nobody",
    "HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN": "the same, read by the Hub's library",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "`--admin-socket` or `--admin-key-file`",
    "VLLM_API_KEY": "`--api-key-env VLLM_API_KEY`",
    "VLLM_ATTENTION_BACKEND": "`--kernel attention=NAME`",
    "VLLM_BATCH_INVARIANT": "`--batch-invariant`",
    "VLLM_CPU_KVCACHE_SPACE": "`--kv-cache-memory-bytes`",
    "VLLM_CPU_OMP_THREADS_BIND": "`--platform-options.cores`, such as `0-3`",
    "VLLM_ENGINE_ITERATION_TIMEOUT_S": "`--engine-stall-timeout-s`",
    "VLLM_HOST_IP": "`--master-addr`",
    "VLLM_LORA_RESOLVER_CACHE_DIR": "`--lora-dir DIR`",
    "VLLM_PLUGINS": "`--disable-plugins`",
    "VLLM_SERVER_DEV_MODE": "`--admin-socket` or `--admin-key-file`",
    "VLLM_TARGET_DEVICE": "`--platform`",
    "VLLM_TORCH_PROFILER_DIR": "`--profile-dir`",
    "VLLM_USE_V2_MODEL_RUNNER, VLLM_WORKER_MULTIPROC_METHOD": "there is one way",
}
#: Effect of a flag -> title of its section, head of its second column.
VLLM_EFFECTS = (
    ("alias", "Other names", "here, where `{}` is the value"),
    ("no effect", "Accepted without effect", "why"),
    ("refused", "Refused", "why, or what to use"),
)


def pages() -> dict[Path, str]:
    """Return every generated file and its text."""
    return {
        ROOT / "docs/reference/cli.md": cli_page(),
        ROOT / "docs/reference/config.md": config_page(),
        ROOT / "docs/reference/from-vllm.md": from_vllm_page(),
        ROOT / "docs/reference/hooks.md": hooks_page(),
        ROOT / "docs/reference/platform.md": platform_page(),
        ROOT / "docs/reference/python.md": python_page(),
        ROOT / "docs/reference/slots.md": slots_page(),
        ROOT / "tests/architecture/surface.txt": surface(),
    }


def parsers() -> Iterator[Parser]:
    """Yield the parser of every command of this repository's distributions."""
    records = PluginManager().records
    foreign = [r.name for r in records if r.distribution.partition("-")[0] != "hotshoe"]
    for name, entry in sorted(PluginManager(disabled=foreign).mapping(HOOK).items()):
        parser = Parser(f"hotshoe {name}", entry.help)
        resolve_lazy(entry.target)().add_arguments(parser)
        yield parser


def shared() -> dict[str, list[argparse.Action]]:
    """Return the groups of flags that several commands have: engine and sampling."""
    parser = Parser("", "")
    add_engine_flags(parser)
    add_sampling_flags(parser)
    return {title: a for title, a in groups(parser) if title in (*ENGINE_GROUPS, "sampling")}


def own(parser: Parser) -> tuple[dict[str, list[argparse.Action]], str]:
    """Return a command's own arguments by group, and words for the shared ones that it takes too.

    The first group has no title.
    """
    titles = [title for title, _ in groups(parser)]
    kinds = [kind for kind in ("model", "sampling") if kind in titles]
    words = " and ".join({"model": "engine flags", "sampling": "sampling flags"}[k] for k in kinds)
    found: dict[str, list[argparse.Action]] = {"": []}
    for title, actions in groups(parser):
        if title not in shared():
            found.setdefault("" if title in PLAIN_TITLES else title, []).extend(actions)
    return found, words


def groups(parser: Parser) -> Iterator[tuple[str, list[argparse.Action]]]:
    """Yield a parser's groups that are not empty, without `--help`."""
    for group in parser._action_groups:
        actions = [a for a in group._group_actions if "--help" not in a.option_strings]
        if actions:
            yield group.title or "", actions


def form(action: argparse.Action) -> str:
    """Return an argument as one would type it."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return ", ".join(action.option_strings)
    value = "|".join(map(str, action.choices)) if action.choices else action.metavar
    names = ", ".join(action.option_strings)
    if action.nargs == 0 or value is None:
        return names
    if not names:
        return str(value) if action.required else f"[{value}]"
    return f"{names} {value}"


def cli_page() -> str:
    """Every command with its flags."""
    lines = [
        "# Command line",
        NOTE,
        "",
        "Engine and sampling flags are the fields of [the configuration](config.md) and of the",
        "request's parameters; engine flags that are not given come from `--config`.",
        "Exit codes: 0 done, 1 the engine failed, 2 a mistake in the call, 130 interrupted.",
        "With `--traceback`, any command shows where an error was raised.",
    ]
    for parser in parsers():
        arguments, more = own(parser)
        lines += ["", f"## {parser.prog}", "", _sentence(parser.description or "")]
        lines += [f"Takes {more} too."] * bool(more)
        for title, found in arguments.items():
            if found:
                lines += ["", f"### {parser.prog}: {title}"] * bool(title) + _arguments(found)
    for title, actions in shared().items():
        lines += ["", f"## {'Flags' if title == 'sampling' else 'Engine flags'}: {title}"]
        lines += _arguments(actions)
    return "\n".join(lines) + "\n"


def _arguments(actions: list[argparse.Action]) -> list[str]:
    rows = [f"| `{_cell(form(a))}` | {_cell(_help(a))} |" for a in actions]
    return ["", "| argument | meaning |", "|---|---|", *rows]


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {"default": action.default, "metavar": action.metavar}


def config_page() -> str:
    """Every field of EngineConfig."""
    hints = typing.get_type_hints(EngineConfig)
    lines = [
        "# Configuration",
        NOTE,
        "",
        "A field is a keyword of `LLM(...)`, a line of a YAML file given by `--config`, and a flag",
        "of the commands (`max_num_seqs` is `--max-num-seqs`; `model` is the first argument).",
        "",
        "| field | type | default | allowed | meaning |",
        "|---|---|---|---|---|",
    ]
    for field in fields(EngineConfig):
        data = field.metadata
        allowed = ", ".join(data["choices"] or ())
        if data["low"] is not None:
            allowed = f"{data['low']} to {data['high']}" if data["high"] else f"≥ {data['low']}"
        default = "{}" if hints[field.name] is dict else repr(_default(field))
        row = (f"`{field.name}`", _type(hints[field.name]), f"`{default}`", allowed, data["help"])
        lines.append("| " + " | ".join(_cell(cell) for cell in row) + " |")
    return "\n".join(lines) + "\n"


def from_vllm_page() -> str:
    """What becomes of vLLM's flags."""
    lines = ["# From vLLM", NOTE, "", *VLLM_HEAD, ""]
    same = ", ".join(f"`{name}`" for name in sorted(SAME))
    lines += ["## The same", "", *textwrap.wrap(same, 100, break_on_hyphens=False)]
    short = ", ".join(f"`{name}` for `{long}`" for name, long in SHORT.items())
    lines += ["", "## Short forms", "", *textwrap.wrap(f"{short}.", 100, break_on_hyphens=False)]
    lines += ["", "## Other values", "", "| flag | value in vLLM: value here |", "|---|---|"]
    for name, values in VALUES.items():
        pairs = ", ".join(f"`{old}`: `{new}`" for old, new in values.items())
        lines.append(f"| `{name}` | {_cell(pairs)} |")
    for effect, title, column in VLLM_EFFECTS:
        lines += ["", f"## {title}", "", f"| flag | {column} |", "|---|---|"]
        for flag in sorted((f for f in FLAGS if f.effect == effect), key=lambda f: f.name):
            text = f"`{' '.join(flag.to)}`" if flag.to else flag.why
            if flag.keys:
                pairs = flag.keys.items()
                text = "; ".join(f"{key}: {_words(words)}" for key, words in pairs)
            if flag.harmless and not flag.to:
                values = ", ".join(f"`{value}`" for value in flag.harmless)
                text += f"; other values than {values} are refused"
            lines.append(f"| `{flag.name}` | {_cell(text)} |")
    return "\n".join([*lines, *_vllm_names(), *_vllm_python()]) + "\n"


def _words(words: Sequence[str]) -> str:
    return f"`{' '.join(words)}`" if words else "of no effect"


def _vllm_names() -> list[str]:
    """What becomes of vLLM's endpoints, metrics and environment variables."""
    optional = itertools.chain(*OPTIONAL.values())
    here = {endpoint.path for endpoint in (*ENDPOINTS, *optional)} | EXTENSIONS
    known = sorted(here & {name for names in VLLM_ENDPOINTS.values() for name in names.split()})
    same = ", ".join(f"`{name}`" for name in known)
    lines = [
        "",
        "## Endpoints",
        "",
        "The same paths, with the [fields](http-api.md#fields) of each:",
    ]
    lines += ["", *textwrap.wrap(f"{same}.", 100, break_on_hyphens=False)]
    lines += ["", "| path | here |", "|---|---|"]
    for text, names in VLLM_ENDPOINTS.items():
        missing = [name for name in names.split() if name not in here]
        if missing:
            lines.append(f"| {', '.join(f'`{name}`' for name in missing)} | {text or 'not yet'} |")
    lines += [
        "",
        "## Metrics",
        "",
        "With `--metrics-names vllm` every metric that vLLM has as well also",
    ]
    lines += ["appears under vLLM's name. [Metrics](metrics.md) lists both names."]
    lines += [
        "",
        "## Environment variables",
        "",
        "`hotshoe serve` has no variables of its own. Flags replace them.",
    ]
    lines += ["", "| variable | here |", "|---|---|"]
    for names, text in VLLM_VARIABLES.items():
        lines.append(f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {text} |")
    return lines


def _vllm_python() -> list[str]:
    """What becomes of vLLM's names in Python."""
    lines = ["", "## Python", "", "`LLM` takes its options by the same names, as in"]
    lines += ["`LLM(model, tensor_parallel_size=2)`. What differs ([Python](python.md)):"]
    lines += ["", "| vLLM | here |", "|---|---|"]
    return [*lines, *(f"| {_cell(there)} | {_cell(here)} |" for there, here in VLLM_PYTHON.items())]


def hooks() -> dict[str, FunctionType]:
    """Return the hook specifications by name."""
    members = inspect.getmembers(hookspecs, inspect.isfunction)
    return {name: hook for name, hook in members if hook.__module__ == hookspecs.__name__}


def hooks_page() -> str:
    """Every hook with its signature."""
    lines = [
        "# Hooks",
        NOTE,
        "",
        f"Hook API version {hookspecs.HOOK_API}. A plugin is an entry point of group `hotshoe`",
        "that states `HOTSHOE_HOOK_API` and implements some of these functions, marked",
        "`@hotshoe.plugins.hookimpl`. Hooks run at start-up only.",
    ]
    for name, hook in hooks().items():
        line = f"def {name}{_signature(hook)}: ..."
        lines += ["", f"## {name}", "", "```python", line, "```", ""]
        lines.append(inspect.getdoc(hook) or "")
    return "\n".join(lines) + "\n"


SLOTS_HEAD = """\
Element types are named as in PyTorch: `float32`, `bfloat16`, `float16`. Slots compute in these.
Storage has more: `int8`, `float8_e4m3fn` and `float8_e5m2` for caches, and the formats of
`QuantSpec` for operands of products.

`PLAIN_LAYOUT` is the `KVLayout` of core's references: token, head, channel. `REFERENCE` names
core's plain implementation among the candidates of each slot. `COMPOSED` names the choice for a
block that nobody serves as one: the layer then makes it of the slots that its record
lists.""".splitlines()


def slots_page() -> str:
    """Every slot with its specification, and every call signature."""
    lines = [
        "# Slots",
        NOTE,
        "",
        "A candidate answers a specification with a verdict; the chosen one builds an operation",
        "with the signature listed below. Every name is in `hotshoe.slots`.",
        "",
        *SLOTS_HEAD,
    ]
    lines += _described(Candidate, members=())
    for item in (Verdict, accept, refuse, QuantSpec, KVLayout):
        lines += _described(item)
    for slot in SLOTS.values():
        lines += ["", f"## {slot.name}", "", _sentence(slot.doc)]
        lines += ["", f"Specification `{slot.spec_type.__name__}`:", "", "```text"]
        lines += [inspect.getdoc(slot.spec_type) or "", "", *_fields(slot.spec_type), "```"]
    lines += [
        "",
        "## Operations",
        "",
        "`Quantized` is a pair: values [num_tokens, size], and scales",
    ]
    lines += ["[num_tokens] float32."]
    for module in (operations, step, mixers):
        for _, operation in inspect.getmembers(module, inspect.isclass):
            if operation.__module__ == module.__name__:
                lines += _described(operation, level="###")
    return "\n".join(lines) + "\n"


def platform_page() -> str:
    """The contract of a platform, and the values in it."""
    lines = ["# Platform", NOTE, "", *PLATFORM_HEAD]
    lines += _described(Platform) + _described(Rehearsing)
    for item in (DeviceFacts, Available, Absent, Broken, Change, MemoryBudget, Target, Proof):
        lines += _described(item, members=())
    return "\n".join(lines) + "\n"


def python_page() -> str:
    """What a program that holds an engine uses, and what may be raised."""
    lines = ["# Python", NOTE, "", *PYTHON_HEAD]
    asked = (SamplingParams, GrammarSpec, TextPrompt, TokensPrompt)
    got = (RequestOutput, CompletionOutput, FinishReason, TokenLogprobs, RequestTiming)
    for item in (LLM, *asked, *got, RequestUpdate, SequenceUpdate):
        lines += _described(item)
    contracts = (EngineClient, EngineStatus, EngineControl, EngineWeights)
    lines += _described(AsyncEngine, members=(*contracts, AsyncEngine.connect))
    lines += ["", "## Errors", "", "In `hotshoe.errors`.", "", "```text"]
    return "\n".join([*lines, inspect.getdoc(errors) or "", "```"]) + "\n"


def _described(item: Any, level: str = "##", members: Sequence[Any] | None = None) -> list[str]:
    """Return a section on a class or a function: what it says of itself, fields, methods.

    Args:
        item: The class or function.
        level: Of the heading.
        members: Who has its methods, or methods; default: the class itself.
    """
    lines = ["", f"{level} {item.__name__}", "", "```text"]
    if inspect.isfunction(item):
        return [*lines, *_method(item.__name__, item), "```"]
    lines.append(inspect.getdoc(item) or "")
    if item in (LLM, AsyncEngine):
        lines += ["", f"{item.__name__}{_signature(item)}"]
    if is_dataclass(item):
        lines += ["", *(_written(f) for f in fields(item) if not f.name.startswith("_"))]
    if issubclass(item, Enum):
        lines += ["", *(f"{member.name} = {member.value!r}" for member in item)]
    for owner in (item,) if members is None else members:
        found = _members(owner) if inspect.isclass(owner) else [(owner.__name__, owner)]
        for name, member in found:
            lines += ["", *_method(name, member)]
    return [*lines, "```"]


def _members(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods and properties that a class adds by itself or by `MIXED_IN`."""
    places = [base for base in owner.__mro__ if base is owner or base in MIXED_IN]
    for name, member in inspect.getmembers(owner):
        member = getattr(member, "__func__", member)
        kinds = inspect.isfunction(member) or (isinstance(member, property) and member.__doc__)
        own = not name.startswith("_") and any(name in vars(base) for base in places)
        if kinds and (own or name == "__call__"):
            yield name, member


def _method(name: str, member: Any) -> list[str]:
    head = name if isinstance(member, property) else f"{name}{_signature(member)}"
    head = f"async {head}" if inspect.iscoroutinefunction(member) else head
    text = inspect.getdoc(member) or ""
    return [head, *textwrap.indent(text, "    ").split("\n")]


def surface() -> str:
    """Everything that users, scripts and plugins hold on to, a line each."""
    lines = ["# The public surface. A change here is a change for users: say so in CHANGELOG.md."]
    lines += ["", "[hotshoe]", *hotshoe.__all__]
    lines += ["", "[EngineConfig]", *_fields(EngineConfig)]
    lines += ["", "[SamplingParams]", *_fields(SamplingParams)]
    for parser in parsers():
        arguments, more = own(parser)
        lines += ["", f"[{parser.prog}]", *(form(a) for found in arguments.values() for a in found)]
        lines += [f"({more})"] * bool(more)
    for title, actions in shared().items():
        lines += ["", f"[flags: {title}]", *map(form, actions)]
    lines += ["", f"[hooks, API {hookspecs.HOOK_API}]"]
    lines += [f"{name}{_signature(hook)}" for name, hook in hooks().items()]
    lines += ["", "[Platform]", *(f"{n}{_signature(f)}" for n, f in methods(Platform).items())]
    lines += ["", "[DeviceFacts]", *_fields(DeviceFacts)]
    for slot in SLOTS.values():
        lines += ["", f"[slot {slot.name}: {slot.spec_type.__name__}]", *_fields(slot.spec_type)]
    return "\n".join(lines) + "\n"


def methods(contract: type) -> dict[str, FunctionType]:
    """Return a contract's public methods."""
    members = inspect.getmembers(contract, inspect.isfunction)
    return {name: method for name, method in members if not name.startswith("_")}


def _fields(record: type) -> list[str]:
    hints = typing.get_type_hints(record)
    return [f"{f.name}: {_type(hints[f.name])}{_shown_default(f)}" for f in fields(record)]


def _written(field: Any) -> str:
    """Return a field as its class has it, whose types may not be imported here."""
    kind = field.type if isinstance(field.type, str) else _type(field.type)
    return f"{field.name}: {_short(kind)}{_shown_default(field)}"


def _shown_default(field: Any) -> str:
    none = field.default is MISSING and field.default_factory is MISSING
    return "" if none else f" = {_default(field)!r}"


def _default(field: Any) -> Any:
    return field.default_factory() if field.default is MISSING else field.default


def _type(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    for prefix in (
        "typing.",
        "collections.abc.",
        "hotshoe.slots.specs.",
        "hotshoe.slots.quant_spec.",
    ):
        text = text.replace(prefix, "")
    return text


def _signature(function: Any) -> str:
    text = re.sub(
        r"""(: |-> )(['"])(.*?)\2(?=[,)= ]|$)""", r"\1\3", str(inspect.signature(function))
    )
    return _short(text)


def _short(text: str) -> str:
    """Leave out the modules of names of classes."""
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the files; say which ones changed."""
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
