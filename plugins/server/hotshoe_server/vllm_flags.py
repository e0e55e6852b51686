"""Flags of `vllm serve`, and what each of them is here.

`hotshoe serve` rewrites its command line by this table before it is parsed, so that a command
written for vLLM works, or says which flag does not and what to use. docs/reference/from-vllm.md is
made from the table. Flags that have the same name and meaning here are in SAME alone.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hotshoe.errors import ConfigError
from hotshoe_server import vllm_drafts
from hotshoe_server.vllm_short import SHORT

#: Whose value is an object, or one word, here and there.
DRAFTS = "--speculative-config"
#: Whose values are objects there, and NAME=DIRECTORY here.
ADAPTERS = "--lora-modules"
#: A place where a value may stand in `Flag.to`.
VALUE = "{}"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of vLLM's.

    Attributes:
        name: With its hyphens.
        why: Of one without effect or refused: a sentence on the reason, or on what to use.
        to: Of another name here: the words that stand for it, `{}` for its value.
        harmless: Values that ask for nothing here, None if every one does.
        keys: Of one whose value is a JSON object: what each of its entries is, as `to`; nothing
            for one without effect.
        takes: Whether a value follows; without, `--no-NAME` is known as well.
    """

    name: str
    why: str = ""
    to: tuple[str, ...] = ()
    harmless: tuple[str, ...] | None = ()
    takes: bool = True
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def effect(self) -> str:
        """What becomes of it: "alias", "no effect" or "refused"."""
        if self.to or self.keys:
            return "alias"
        return "no effect" if self.harmless != () else "refused"


def _alias(name: str, *to: str, takes: bool = True, harmless: tuple[str, ...] = ()) -> Flag:
    return Flag(name, to=to, takes=takes, harmless=harmless)


def _object(name: str, **keys: tuple[str, ...]) -> Flag:
    return Flag(name, keys=keys)


def _ignored(name: str, why: str, *harmless: str, takes: bool = True) -> Flag:
    return Flag(name, why, harmless=harmless or None, takes=takes)


def _refused(name: str, why: str, takes: bool = True) -> Flag:
    return Flag(name, why, takes=takes)


_ALWAYS = "this is always so here"
_RECORDED = "the engine chooses the steps to record; --optimization-level bounds them"
_FILES = "the engine reads safetensors alone, each when it needs it"
_BALANCER = "start several servers behind a balancer"
_ONE = "--tensor-parallel-size processes compute a layer"
_LOGS = "--log-format and --access-log control the log"
_TEXT = "models here read text alone"
_PROXY = "let the proxy in front of the server do it"
_TASKS = "the model's files show its tasks"
#: The last two stand for encodings of conversations, which are chat templates here.
_TOKENIZERS = ("auto", "hf", "slow", "mistral", "deepseek_v32", "deepseek_v4")
_POOLING = ("--pooling", VALUE)
_FRACTION = ("--platform-options.memory_fraction", VALUE)

FLAGS: tuple[Flag, ...] = (
    # Other names here.
    _alias("--model", VALUE),
    _alias("--gpu-memory-utilization", *_FRACTION),
    _alias("--api-server-count", "--api-processes", VALUE),
    _alias("--device", "--platform", VALUE),
    _alias("--guided-decoding-backend", "--structured-output-backend", VALUE),
    _alias("--h11-max-incomplete-event-size", "--max-header-bytes", VALUE),
    _alias("--otlp-traces-endpoint", "--otlp-endpoint", VALUE),
    _alias("--mamba-cache-mode", "--state-cache-mode", VALUE),
    _alias("--mamba-cache-dtype", "--conv-state-dtype", VALUE),
    _alias("--mamba-ssm-cache-dtype", "--state-dtype", VALUE),
    _alias("--rope-scaling", "--hf-overrides", "rope_scaling={}"),
    _alias("--rope-theta", "--hf-overrides", "rope_theta={}"),
    _alias("--disable-frontend-multiprocessing", "--no-engine-process", takes=False),
    _alias("--shutdown-timeout", "--shutdown-timeout-s", VALUE),
    _alias("--enable-log-requests", "--access-log", takes=False),
    _alias("--attention-backend", "--kernel", "attention={}", harmless=("auto",)),
    _alias("--linear-backend", "--kernel", "linear={}", harmless=("auto",)),
    _alias("--moe-backend", "--kernel", "moe={}", harmless=("auto",)),
    *(_alias(name, f"{DRAFTS}.{key}", VALUE) for name, key in vllm_drafts.ENTRIES.items()),
    # Objects.
    _object("--attention-config", backend=("--kernel", "attention={}")),
    _object(
        "--structured-outputs-config",
        backend=("--structured-output-backend", VALUE),
        disable_any_whitespace=("--structured-output-max-blanks", "0"),
        disable_fallback=(),
        reasoning_parser=("--reasoning-parser", VALUE),
    ),
    _object(
        "--eplb-config",
        num_redundant_experts=("--num-redundant-experts", VALUE),
        step_interval=("--eplb-step-interval", VALUE),
    ),
    _object("--pooler-config", pooling_type=_POOLING, seq_pooling_type=_POOLING),
    _object("--override-pooler-config", pooling_type=_POOLING),
    _object("--profiler-config", profiler=(), torch_profiler_dir=("--profile-dir", VALUE)),
    # Of no effect.
    _ignored("--trust-remote-code", "no code of a checkpoint is ever run", takes=False),
    _ignored("--enable-chunked-prefill", "prompts are always computed in chunks", takes=False),
    _ignored("--compilation-config", _RECORDED),
    _ignored("--uvicorn-log-level", _LOGS),
    _ignored("--disable-uvicorn-access-log", "there is none without --access-log", takes=False),
    _ignored("--disable-log-stats", "numbers are at /metrics, never in the log", takes=False),
    _ignored("--disable-log-requests", "requests are not logged", takes=False),
    _ignored("--max-log-len", "prompts are never logged"),
    _ignored("--data-parallel-size", _BALANCER, "1"),
    _ignored("--decode-context-parallel-size", _ONE, "1"),
    _ignored("--node-rank", "an engine runs on the first host; run `hotshoe join` elsewhere", "0"),
    _ignored("--allowed-headers", "pages of --allowed-origins may send every header", '["*"]', "*"),
    _ignored("--allowed-methods", "pages of --allowed-origins may use every method", '["*"]', "*"),
    _ignored("--allow-credentials", "keys are sent in a header, cookies are not used", takes=False),
    _ignored("--swap-space", "the engine computes preempted requests again"),
    _ignored("--max-parallel-loading-workers", "weights are read as they are needed"),
    _ignored("--disable-custom-all-reduce", "--kernel communicator=NAME chooses", takes=False),
    _ignored("--disable-cascade-attn", "--kernel attention=NAME chooses", takes=False),
    _ignored("--enable-prompt-tokens-details", _ALWAYS, takes=False),
    _ignored("--enable-server-load-tracking", "/load always tells", takes=False),
    _ignored("--exclude-tools-when-tool-choice-none", _ALWAYS, takes=False),
    _ignored("--enable-reasoning", "--reasoning-parser is enough", takes=False),
    _ignored("--disable-fastapi-docs", "there are no pages of documentation", takes=False),
    _ignored("--disable-hybrid-kv-cache-manager", "the cache follows the model", takes=False),
    _ignored("--use-v2-block-manager", "there is one block manager", takes=False),
    _ignored("--preemption-mode", "the engine computes preempted requests again", "recompute"),
    _ignored("--response-role", "answers are the assistant's", "assistant"),
    _ignored("--chat-template-content-format", "parts of text are joined", "auto", "string"),
    _ignored("--tokenizer-mode", "tokenizer.json is read", *_TOKENIZERS),
    _ignored("--config-format", "config.json is read", "auto", "hf", "mistral"),
    _ignored("--task", _TASKS, "auto", "generate", "embed", "classify", "score"),
    _ignored("--runner", _TASKS, "auto", "generate", "pooling"),
    _ignored("--convert", _TASKS, "auto", "none", "embed", "classify"),
    _ignored("--limit-mm-per-prompt", _TEXT),
    _ignored("--mm-processor-kwargs", _TEXT),
    _ignored("--language-model-only", _TEXT, takes=False),
    _ignored("--max-num-partial-prefills", "prompts share the budget of a step", "1"),
    _ignored("--long-prefill-token-threshold", "prompts share the budget of a step", "0"),
    _ignored("--prefix-caching-hash-algo", "hashes are cryptographic"),
    _ignored("--guided-decoding-disable-fallback", "there is no silent fallback", takes=False),
    _ignored(
        "--calculate-kv-scales",
        "scales are the checkpoint's, or computed for each token",
        takes=False,
    ),
    _ignored("--root-path", "the server writes no paths of its own; the proxy removes the prefix"),
    _ignored("--max-seq-len-to-capture", _RECORDED),
    _ignored("--performance-mode", _RECORDED),
    _ignored("--use-tqdm-on-load", "loading shows no bars", takes=False),
    _ignored("--safetensors-load-strategy", _FILES),
    _ignored("--pt-load-map-location", _FILES),
    _ignored("--ignore-patterns", _FILES),
    _ignored("--mm-processor-cache-gb", _TEXT),
    _ignored("--mm-processor-cache-type", _TEXT),
    _ignored("--mm-encoder-tp-mode", _TEXT),
    _ignored("--mm-encoder-attn-backend", _TEXT),
    _ignored("--media-io-kwargs", _TEXT),
    _ignored("--allowed-local-media-path", _TEXT),
    _ignored("--allowed-media-domains", _TEXT),
    _ignored("--video-pruning-rate", _TEXT),
    _ignored("--skip-mm-profiling", _TEXT, takes=False),
    _ignored("--interleave-mm-strings", _TEXT, takes=False),
    _ignored("--disable-chunked-mm-input", _TEXT, takes=False),
    _ignored("--disable-mm-preprocessor-cache", _TEXT, takes=False),
    _ignored("--enable-multimodal-encoder-data-parallel", _TEXT, takes=False),
    _ignored("--max-long-partial-prefills", "prompts share the budget of a step", "1"),
    _ignored("--prefill-context-parallel-size", _ONE, "1"),
    _ignored("--data-parallel-size-local", _BALANCER, "1"),
    _ignored("--data-parallel-rank", _BALANCER, "0"),
    _ignored("--data-parallel-start-rank", _BALANCER, "0"),
    _ignored("--data-parallel-backend", _BALANCER, "mp"),
    _ignored("--stream-interval", "a chunk has the tokens of one step", "1"),
    _ignored("--lora-dtype", "adapters have the model's type", "auto"),
    _ignored("--lora-extra-vocab-size", "adapters add no tokens", "0", "256"),
    _ignored("--fully-sharded-loras", "adapters are split as the model is", takes=False),
    _ignored("--logprobs-mode", "log probabilities are the model's own", "raw_logprobs"),
    _ignored("--show-hidden-metrics-for-version", "--metrics-names vllm shows what there is"),
    _ignored("--kv-cache-metrics", "--metrics-names vllm shows what there is", takes=False),
    _ignored("--enable-mfu-metrics", "--metrics-names vllm shows what there is", takes=False),
    _ignored("--aggregate-engine-logging", "numbers are at /metrics", takes=False),
    _ignored("--disable-access-log-for-endpoints", "there is no access log unless asked for"),
    _ignored("--enable-log-outputs", "texts are never logged", takes=False),
    _ignored("--enable-log-deltas", "texts are never logged", takes=False),
    _ignored("--log-error-stack", "the log has stacks of unknown errors", takes=False),
    _ignored("--enable-request-id-headers", _ALWAYS, takes=False),
    _ignored("--enable-prompt-embeds", _ALWAYS, takes=False),
    _ignored("--h11-max-header-count", "--max-header-bytes bounds them"),
    _ignored("--renderer-num-workers", "--api-processes renders and tokenizes"),
    _ignored("--disable-async-output-proc", "--async-scheduling overlaps steps", takes=False),
    _ignored("--multi-step-stream-outputs", "a chunk has the tokens of one step", takes=False),
    _ignored("--tokenizer-pool-size", "texts are tokenized in threads"),
    _ignored("--scheduler-delay-factor", "no prompt waits for others", "0", "0.0"),
    _ignored("--mamba-block-size", "states are kept where blocks end"),
    _ignored("--ray-workers-use-nsight", "/start_profile records", takes=False),
    _ignored("--expert-placement-strategy", "--enable-eplb moves experts", "linear"),
    # Refused.
    _refused("--ssl-ca-certs", f"certificates of clients are not checked; {_PROXY}"),
    _refused("--ssl-cert-reqs", f"certificates of clients are not checked; {_PROXY}"),
    _refused("--enable-ssl-refresh", "start the server anew with the new certificate", takes=False),
    _refused("--log-config-file", _LOGS),
    _refused("--max-cpu-loras", "--lora-host-memory-gib bounds their bytes"),
    _refused("--kv-transfer-config", "the cache is not shared with other servers"),
    _refused("--num-gpu-blocks-override", "use --kv-cache-memory-bytes"),
    _refused("--tokenizer-revision", "fetch that revision and name its directory by --tokenizer"),
    _refused("--code-revision", "no code of a checkpoint is ever run"),
    _refused("--hf-token", "set HF_TOKEN, or log in with the hub's own command"),
    _refused("--hf-config-path", "use --hf-overrides"),
    _refused("--tool-parser-plugin", "an installed plugin adds some (hook hotshoe_tool_parsers)"),
    _refused(
        "--reasoning-parser-plugin", "an installed plugin adds some (hotshoe_reasoning_parsers)"
    ),
    _refused("--logits-processor-pattern", "requests name no code; use --logits-processors"),
    _refused("--io-processor-plugin", "an installed plugin adds endpoints"),
    _refused("--scheduler-cls", "there is one scheduler"),
    _refused("--worker-cls", "an installed plugin adds executors (hook hotshoe_executors)"),
    _refused("--worker-extension-cls", "an installed plugin adds endpoints"),
    _refused("--reasoning-config", "requests have thinking_token_budget; use --reasoning-parser"),
    _refused("--model-loader-extra-config", "use --load-format"),
    _refused("--all2all-backend", "use --kernel communicator=NAME"),
    _refused("--kernel-config", "use --kernel SLOT=NAME"),
    _refused("--data-parallel-address", _BALANCER),
    _refused("--data-parallel-rpc-port", _BALANCER),
    _refused("--data-parallel-hybrid-lb", _BALANCER, takes=False),
    _refused("--data-parallel-external-lb", _BALANCER, takes=False),
    _refused("--kv-offloading-size", "the cache stays on the device"),
    _refused("--kv-offloading-backend", "the cache stays on the device"),
    _refused(
        "--kv-sharing-fast-prefill", "layers that share a cache compute all tokens", takes=False
    ),
    _refused("--kv-events-config", "the cache tells nobody of its blocks"),
    _refused("--ec-transfer-config", _TEXT),
    _refused("--enable-mm-embeds", _TEXT, takes=False),
    _refused("--default-mm-loras", _TEXT),
    _refused("--qlora-adapter-name-or-path", "use --lora-modules"),
    _refused("--collect-detailed-traces", "use --otlp-endpoint"),
    _refused("--enable-layerwise-nvtx-tracing", "POST /start_profile", takes=False),
    _refused("--additional-config", "use --platform-options.NAME VALUE"),
    _refused("--weight-transfer-config", "POST /update_weights"),
    _refused("--ssl-ciphers", f"the library chooses them; {_PROXY}"),
    _refused("--tokens-only", "use --skip-tokenizer-init", takes=False),
    _refused("--enable-offline-docs", "there are no pages of documentation", takes=False),
    _refused("--enable-return-routed-experts", "answers do not name experts", takes=False),
    _refused("--num-lookahead-slots", "use --speculative-config"),
    _refused("--override-neuron-config", "there is no such platform"),
    _refused("--allow-deprecated-quantization", "no format is deprecated", takes=False),
    _refused("--num-scheduler-steps", "--async-scheduling overlaps steps"),
    _refused("--headless", "engines and servers are not started apart", takes=False),
    _refused("--disable-sliding-window", "the window is the model's", takes=False),
    _refused("--enable-dbo", "micro-batches are not offered", takes=False),
)
#: Flags that are the same here, as people use them.
SAME: tuple[str, ...] = (
    *("--allowed-origins", "--api-key", "--async-scheduling", "--block-size", "--chat-template"),
    *("--config", "--default-chat-template-kwargs", "--distributed-executor-backend"),
    *("--download-dir", "--dtype"),
    *(
        "--enable-auto-tool-choice",
        "--enable-expert-parallel",
        "--enable-prefix-caching",
        "--enforce-eager",
    ),
    *("--enable-force-include-usage", "--override-generation-config"),
    *("--return-tokens-as-token-ids", "--trust-request-chat-template"),
    *("--generation-config", "--hf-overrides", "--host", "--kv-cache-dtype"),
    *("--kv-cache-memory-bytes", "--load-format", "--max-logprobs", "--max-model-len"),
    *("--logits-processors", "--lora-target-modules", "--optimization-level", "-O"),
    *("--master-addr", "--master-port", "--model-impl", "--nnodes"),
    *("--max-num-batched-tokens", "--max-num-seqs", "--pipeline-parallel-size", "--port"),
    *("--quantization",),
    *("--reasoning-parser", "--revision", "--scheduling-policy", "--seed", "--served-model-name"),
    *("--skip-tokenizer-init", "--speculative-config", "--ssl-certfile", "--ssl-keyfile"),
    *("--tensor-parallel-size", "--tokenizer", "--tool-call-parser", "--tool-server", "--uds"),
)
#: Formats of reasoning between <think> and </think>.
_THINK = "glm45 glm47 holo2 kimi_k2 mimo minimax_m2 nemotron_v3 olmo3 step3 step3p5".split()
#: Values that have another name here.
VALUES: Mapping[str, Mapping[str, str]] = {
    "--tool-call-parser": {
        "ernie45": "hermes",
        "glm47": "glm45",
        "granite-20b-fc": "granite_20b_fc",
        "granite4": "hermes",
        "llama4_json": "llama3_json",
        "llama4_pythonic": "pythonic",
        "openai": "harmony",
        **dict.fromkeys(("mimo", "qwen3_coder", "step3p5"), "qwen3_xml"),
    },
    "--reasoning-parser": {
        **dict.fromkeys(("deepseek_v3", "deepseek_v4"), "deepseek_r1"),
        "ernie45": "granite",  # whose answers stand in <response>, too
        **dict.fromkeys((*_THINK, "minimax_m2_append_think"), "qwen3"),
        "openai_gptoss": "harmony",
    },
    "--generation-config": {"vllm": "none"},
    "--kv-cache-dtype": {"fp8_ds_mla": "fp8", "fp8_e4m3": "fp8"},
    "--load-format": dict.fromkeys(
        ("auto", "bitsandbytes", "fastsafetensors", "gguf", "hf", "mistral", "runai_streamer"),
        "safetensors",
    ),
    "--dtype": {"half": "float16", "float": "float32"},
    "--quantization": {"awq_marlin": "awq", "gptq_marlin": "gptq", "modelopt_fp4": "modelopt"},
    "--model-impl": {"vllm": "native"},
    "--structured-output-backend": {"guidance": "llguidance"},
    f"{DRAFTS}.method": vllm_drafts.METHODS,
    "--pooling": {"CLS": "cls", "LAST": "last", "MEAN": "mean"},
    "--kernel": {
        "attention=CPU_ATTN": "attention=native",
        "attention=FLASHINFER": "attention=flashinfer",
        "attention=FLASH_ATTN": "attention=flash3",
        "attention=TRITON_ATTN": "attention=triton",
    },
}
_BY_NAME = {flag.name: flag for flag in FLAGS}


def rewrite(words: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Return a command line of vLLM's as one of `hotshoe serve`.

    Args:
        words: After the command; underscores of flags are hyphens already.
        say: Told of every flag that has no effect here, in a line.

    Raises:
        ConfigError: A flag cannot be honored, or lacks its value.
    """
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return [*found, word, *rest]
        name, equals, value = _long(word)
        flag, off = _find(name)
        if flag is None:
            found.append(name + equals + _named(name, value, say))
            if not equals and name in (*VALUES, DRAFTS, ADAPTERS):
                found += [_named(name, word, say) for word in itertools.islice(rest, 1)]
            continue
        if flag.takes and not equals:
            value = _value(flag, rest)
        found += _meant(flag, value if name == flag.name else _entry(name, value), off, say)
    return vllm_drafts.with_method(found, DRAFTS, say)


def _named(name: str, value: str, say: Callable[[str], None]) -> str:
    """Return the value of a flag that both have, by the name that it has here."""
    if name in (DRAFTS, f"{DRAFTS}.method"):
        return vllm_drafts.meant(value, say)
    if name == ADAPTERS:
        return _adapter(value)
    return VALUES.get(name, {}).get(value, value)


def _adapter(value: str) -> str:
    """Return an adapter as NAME=DIRECTORY, also of the object that vLLM takes."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    named = isinstance(found, dict) and {"name", "path"} <= found.keys()
    return f"{found['name']}={found['path']}" if named else value


def _long(word: str) -> tuple[str, str, str]:
    """Return a flag's long name, the `=` if there is one, and what follows."""
    name, equals, value = word.partition("=")
    if name.startswith("-O."):  # as older versions spell it
        return SHORT["-cc"] + name[2:], equals, value
    base, dot, path = name.partition(".")
    return SHORT.get(base, base) + dot + path, equals, value


def _find(name: str) -> tuple[Flag | None, bool]:
    """Return the flag of a name, and whether it is switched off."""
    if found := _BY_NAME.get(name.partition(".")[0]):
        return found, False
    flag = _BY_NAME.get(name.replace("--no-", "--", 1)) if name.startswith("--no-") else None
    return (None, False) if flag is None or flag.takes else (flag, True)


def _value(flag: Flag, rest: Iterator[str]) -> str:
    value = next(rest, None)
    if value is None:
        raise ConfigError(f"{flag.name} needs a value")
    return value


def _meant(flag: Flag, value: str, off: bool, say: Callable[[str], None]) -> list[str]:
    """Return the words that stand for a flag here.

    Raises:
        ConfigError: There are none.
    """
    if flag.keys and not off:
        return [
            word for key, entry in _entries(flag, value) for word in _kept(flag, key, entry, say)
        ]
    if flag.to and not off:
        return [] if value in (flag.harmless or ()) else _filled(flag.to, value)
    if off and flag.effect != "no effect":
        return []  # it is off already
    if off or (flag.harmless == () or (flag.harmless and _plain(value) not in flag.harmless)):
        shown = f"--no-{flag.name[2:]}" if off else flag.name
        shown += f" {value}" if flag.harmless and not off else ""
        raise ConfigError(f"{shown} of vLLM is not offered here: {flag.why}")
    say(f"{flag.name} of vLLM has no effect here: {flag.why}")
    return []


def _filled(words: Sequence[str], value: str) -> list[str]:
    """Return words with a value in its place, by the name that it has here."""
    known = VALUES.get(words[0], {})
    found = (word.replace(VALUE, value) for word in words)
    return [known.get(word, word) for word in found]


def _entry(name: str, value: str) -> str:
    """Return the JSON object that `--flag.key value` stands for."""
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        read = value
    return json.dumps({name.partition(".")[2]: read})


def _entries(flag: Flag, value: str) -> list[tuple[str, object]]:
    """Return the entries of a JSON object.

    Raises:
        ConfigError: It is none.
    """
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{flag.name} takes a JSON object, not {value[:100]!r}")
    return list(found.items())


def _kept(flag: Flag, key: str, value: object, say: Callable[[str], None]) -> list[str]:
    """Return the words that stand for an entry of a flag's object.

    Raises:
        ConfigError: There are none.
    """
    if key not in flag.keys or not isinstance(value, (str, int, float, type(None))):
        known = ", ".join(sorted(flag.keys))
        raise ConfigError(f"{flag.name}: {key} of vLLM is not offered here, only {known}")
    if value in (None, False, "auto"):
        return []  # asks for nothing
    if not flag.keys[key]:
        say(f"{flag.name}: {key} of vLLM has no effect here")
        return []
    return _filled(flag.keys[key], str(value))


def _plain(value: str) -> str:
    """Return a JSON list without its spaces, and any other value as it is."""
    try:
        return json.dumps(json.loads(value)) if value.startswith("[") else value
    except (ValueError, RecursionError):
        return value
