"""Every metric in one table: name, kind, labels, buckets, meaning, and what vLLM calls it.

Label sets are closed: each label lists its values here, so that no request can make a new series.
Exposition, the documentation's page and the test of the dashboard all read this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hotshoe.config import MAX_SPECULATIVE_TOKENS
from hotshoe.engine.client import EngineStats
from hotshoe.types import FinishReason
from hotshoe_observability.bounds import (
    COUNTS,
    HTTP_FEW,
    HTTP_MANY,
    SECONDS,
    STEP_TOKENS,
    TOKENS,
    VLLM_COUNTS,
    VLLM_FIRST,
    VLLM_GAPS,
    VLLM_SPANS,
    VLLM_TOKENS,
)
from hotshoe_server.errors import CATALOG

Kind = Literal["counter", "gauge", "histogram"]

#: Stands for every value of a label that its set does not list.
OTHER = "other"
ENDPOINTS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/embeddings", "/inference/v1/generate"),
    OTHER,
)
#: Routes whose answers are counted by name, as path and method; others are counted together.
ROUTES = (
    *(f"{path} POST" for path in ENDPOINTS if path != OTHER),
    *("/v1/messages/count_tokens POST", "/tokenize POST", "/detokenize POST", "/v1/models GET"),
    *(f"{OTHER} {method}" for method in ("GET", "POST", "DELETE")),
)
STATUSES = ("2xx", "3xx", "4xx", "5xx")
#: Routes that probes and monitors ask again and again: their answers are not counted.
UNCOUNTED = frozenset(
    ("/metrics", "/live", "/ready", "/health", "/ping", "/load", "/version", "/server_info")
)
#: By sleep level; also vLLM's.
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
#: Why sequences wait; also vLLM's words.
WAITS = ("capacity", "deferred")
#: Of prompt tokens; blocks that came from another engine lie in the cache.
SOURCES = ("local_compute", "local_cache_hit")
REASONS = tuple(reason.value for reason in FinishReason)
PLACES = tuple(map(str, range(MAX_SPECULATIVE_TOKENS)))
REFUSALS = ("engine_dead", "queue_full", "shutting_down", OTHER)
ERRORS = (*sorted(CATALOG), "client_gone", OTHER)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Every series also has label `model`.

    Attributes:
        name: Without the suffix that the format adds, such as `_total`.
        kind: As Prometheus has them.
        help: One line.
        read: Of a metric that the engine counts: its value, or values by label, or a histogram's
            numbers by bound, infinity included, and the sum. None where the front end counts.
        label: Names of further labels, with a space between them; "" for none.
        values: All values of these labels, written alike.
        sparse: Values that the engine has not met yet have no series.
        buckets: Of a histogram: upper bounds, without infinity.
        vllm: Its name at vLLM, "" where that has no counterpart.
        vllm_label: How vLLM calls the labels.
        vllm_buckets: Upper bounds under vLLM's name.
    """

    name: str
    kind: Kind
    help: str
    read: Callable[[EngineStats], float | Mapping[str, float] | Sequence[float]] | None = None
    label: str = ""
    values: tuple[str, ...] = ("",)
    sparse: bool = False
    buckets: tuple[float, ...] = field(default=(), repr=False)
    vllm: str = ""
    vllm_label: str = ""
    vllm_buckets: tuple[float, ...] = field(default=(), repr=False)

    @property
    def bounds(self) -> tuple[float, ...]:
        """All upper bounds that are counted, for either set of names."""
        return tuple(sorted({*self.buckets, *self.vllm_buckets}))

    @property
    def sample(self) -> str:
        """The name that queries use; a histogram's has `_bucket`, `_sum` and `_count` behind it."""
        return self.name + "_total" * (self.kind == "counter")


def _histogram(
    name: str,
    help: str,
    buckets: tuple[float, ...],
    vllm: str,
    vllm_buckets: tuple[float, ...],
) -> Metric:
    return Metric(name, "histogram", help, buckets=buckets, vllm=vllm, vllm_buckets=vllm_buckets)


#: Read from the engine, which counts over all front ends.
ENGINE = (
    Metric(
        "hotshoe_requests_running",
        "gauge",
        "Sequences that are being computed.",
        lambda s: s.num_running,
        vllm="vllm:num_requests_running",
    ),
    Metric(
        "hotshoe_requests_waiting",
        "gauge",
        "Sequences that wait to be computed.",
        lambda s: s.num_waiting,
        vllm="vllm:num_requests_waiting",
    ),
    Metric(
        "hotshoe_requests_waiting_by_reason",
        "gauge",
        "Of these, sequences that wait for room, and for a grammar or the end of a pause.",
        lambda s: dict(zip(WAITS, (s.num_waiting - s.num_aside, s.num_aside), strict=True)),
        label="reason",
        values=WAITS,
        vllm="vllm:num_requests_waiting_by_reason",
        vllm_label="reason",
    ),
    Metric(
        "hotshoe_waiting_tokens",
        "gauge",
        "Known tokens of waiting sequences.",
        lambda s: s.num_waiting_tokens,
    ),
    Metric(
        "hotshoe_kv_cache_usage_ratio",
        "gauge",
        "Share of the KV cache's blocks that sequences hold, 0 to 1.",
        lambda s: s.kv_cache_usage,
        vllm="vllm:kv_cache_usage_perc",
    ),
    Metric(
        "hotshoe_engine_paused",
        "gauge",
        "1 while generation is paused.",
        lambda s: s.is_paused,
    ),
    Metric(
        "hotshoe_engine_sleeping",
        "gauge",
        "1 while the engine sleeps.",
        lambda s: s.is_sleeping,
    ),
    Metric(
        "hotshoe_engine_sleep_state",
        "gauge",
        "1 for where the weights are: in use, in host memory, or given away.",
        lambda s: {SLEEP_STATES[s.sleep_level or 0]: 1},
        label="state",
        values=SLEEP_STATES,
        vllm="vllm:engine_sleep_state",
        vllm_label="sleep_state",
    ),
    Metric(
        "hotshoe_last_step_seconds",
        "gauge",
        "Duration of the latest step.",
        lambda s: s.last_step_s,
    ),
    Metric(
        "hotshoe_last_step_tokens",
        "gauge",
        "Tokens that the latest step computed.",
        lambda s: s.last_step_tokens,
    ),
    Metric(
        "hotshoe_steps",
        "counter",
        "Steps.",
        lambda s: s.num_steps,
    ),
    Metric(
        "hotshoe_step_tokens",
        "histogram",
        "Tokens that a step computed.",
        lambda s: (*s.num_steps_of, s.num_step_tokens),
        buckets=STEP_TOKENS,
        vllm="vllm:iteration_tokens_total",
        vllm_buckets=STEP_TOKENS,
    ),
    Metric(
        "hotshoe_prompt_tokens",
        "counter",
        "Prompt tokens of sequences that were started.",
        lambda s: s.num_prompt_tokens,
        vllm="vllm:prompt_tokens",
    ),
    Metric(
        "hotshoe_prompt_tokens_cached",
        "counter",
        "Of these, tokens found in the prefix cache.",
        lambda s: s.num_cached_tokens,
        vllm="vllm:prompt_tokens_cached",
    ),
    Metric(
        "hotshoe_prompt_tokens_by_source",
        "counter",
        "Prompt tokens that were computed, and tokens found in the prefix cache.",
        lambda s: {
            SOURCES[0]: s.num_prompt_tokens - s.num_cached_tokens,
            SOURCES[1]: s.num_cached_tokens,
        },
        label="source",
        values=SOURCES,
        vllm="vllm:prompt_tokens_by_source",
        vllm_label="source",
    ),
    Metric(
        "hotshoe_generated_tokens",
        "counter",
        "Tokens generated.",
        lambda s: s.num_generated_tokens,
        vllm="vllm:generation_tokens",
    ),
    Metric(
        "hotshoe_preemptions",
        "counter",
        "Sequences pushed back into the queue for want of KV cache blocks.",
        lambda s: s.num_preemptions,
        vllm="vllm:num_preemptions",
    ),
    Metric(
        "hotshoe_sequences_not_finite",
        "counter",
        "Sequences that failed as the model gave no finite numbers.",
        lambda s: s.num_failed,
        vllm="vllm:corrupted_requests",
    ),
    Metric(
        "hotshoe_prefix_cache_queried_tokens",
        "counter",
        "Tokens looked up in the prefix cache.",
        lambda s: s.num_queried_tokens,
        vllm="vllm:prefix_cache_queries",
    ),
    Metric(
        "hotshoe_prefix_cache_hit_tokens",
        "counter",
        "Tokens found there.",
        lambda s: s.num_hit_tokens,
        vllm="vllm:prefix_cache_hits",
    ),
    Metric(
        "hotshoe_spec_decode_drafts",
        "counter",
        "Times that a step verified drafts of a sequence.",
        lambda s: s.num_drafts,
        vllm="vllm:spec_decode_num_drafts",
    ),
    Metric(
        "hotshoe_spec_decode_draft_tokens",
        "counter",
        "Tokens of these drafts.",
        lambda s: s.num_draft_tokens,
        vllm="vllm:spec_decode_num_draft_tokens",
    ),
    Metric(
        "hotshoe_spec_decode_accepted_tokens",
        "counter",
        "Of these, tokens that were accepted.",
        lambda s: s.num_accepted_tokens,
        vllm="vllm:spec_decode_num_accepted_tokens",
    ),
    Metric(
        "hotshoe_spec_decode_accepted_tokens_per_pos",
        "counter",
        "Accepted tokens by their place among the drafts, from 0.",
        lambda s: {str(place): count for place, count in enumerate(s.num_accepted_at)},
        label="position",
        values=PLACES,
        sparse=True,
        vllm="vllm:spec_decode_num_accepted_tokens_per_pos",
        vllm_label="position",
    ),
    Metric(
        "hotshoe_expert_rearrangements",
        "counter",
        "Times that experts of a layer changed places between devices, for their balance.",
        lambda s: s.experts.num_rearrangements,
    ),
    Metric(
        "hotshoe_experts_moved", "counter", "Experts that moved so.", lambda s: s.experts.num_moved
    ),
    Metric(
        "hotshoe_expert_imbalance_ratio",
        "gauge",
        "Most of experts' tokens on a device over the mean, at the last look; 0 before.",
        lambda s: s.experts.imbalance,
    ),
    Metric(
        "hotshoe_sequences_finished",
        "counter",
        "Sequences that ended, by reason.",
        lambda s: s.num_finished,
        label="reason",
        values=REASONS,
        vllm="vllm:request_success",
        vllm_label="finished_reason",
    ),
)

#: Counted by the front end, summed over its processes.
REQUESTS = Metric(
    "hotshoe_requests",
    "counter",
    "Requests that went to the engine, by endpoint.",
    label="endpoint",
    values=ENDPOINTS,
)
FAILED = Metric(
    "hotshoe_requests_failed",
    "counter",
    "Of these, requests that failed or were cut off, by cause.",
    label="error",
    values=ERRORS,
)
REFUSED = Metric(
    "hotshoe_requests_refused",
    "counter",
    "Requests turned away before they were read, by cause; none of the above.",
    label="error",
    values=REFUSALS,
)
ANSWERED = Metric(
    "hotshoe_http_requests",
    "counter",
    "HTTP requests answered, by route, method and status; without those of probes and monitors.",
    label="handler method status",
    values=tuple(f"{route} {status}" for route in ROUTES for status in STATUSES),
    vllm="http_requests",
    vllm_label="handler method status",
)
ANSWER_TIME = Metric(
    "hotshoe_http_request_seconds",
    "histogram",
    "From an HTTP request being read to the end of its answer, by route and method.",
    label="handler method",
    values=ROUTES,
    buckets=HTTP_FEW,
    vllm="http_request_duration_seconds",
    vllm_label="handler method",
    vllm_buckets=HTTP_FEW,
)
ANSWER_TIMES = _histogram(
    "hotshoe_http_request_highr_seconds",
    "The same over all routes, in finer buckets.",
    HTTP_MANY,
    "http_request_duration_highr_seconds",
    HTTP_MANY,
)
TTFT = _histogram(
    "hotshoe_time_to_first_token_seconds",
    "From the HTTP request being read to its first token.",
    SECONDS,
    "vllm:time_to_first_token_seconds",
    VLLM_FIRST,
)
ITL = _histogram(
    "hotshoe_inter_token_latency_seconds",
    "Between steps that brought tokens to a request.",
    SECONDS,
    "vllm:inter_token_latency_seconds",
    VLLM_GAPS,
)
TPOT = _histogram(
    "hotshoe_time_per_output_token_seconds",
    "Per request of one sequence: time per token after the first.",
    SECONDS,
    "vllm:request_time_per_output_token_seconds",
    VLLM_GAPS,
)
E2E = _histogram(
    "hotshoe_request_seconds",
    "From the HTTP request being read to the end of its answer.",
    SECONDS,
    "vllm:e2e_request_latency_seconds",
    VLLM_SPANS,
)
QUEUE = _histogram(
    "hotshoe_queue_seconds",
    "From a request's arrival at the engine to its start.",
    SECONDS,
    "vllm:request_queue_time_seconds",
    VLLM_SPANS,
)
PREFILL = _histogram(
    "hotshoe_prefill_seconds",
    "From a request's start to its first token.",
    SECONDS,
    "vllm:request_prefill_time_seconds",
    VLLM_SPANS,
)
DECODE = _histogram(
    "hotshoe_decode_seconds",
    "From a request's first token to its last.",
    SECONDS,
    "vllm:request_decode_time_seconds",
    VLLM_SPANS,
)
INFERENCE = _histogram(
    "hotshoe_inference_seconds",
    "From a request's start to its last token.",
    SECONDS,
    "vllm:request_inference_time_seconds",
    VLLM_SPANS,
)
PROMPT_LENGTH = _histogram(
    "hotshoe_request_prompt_tokens",
    "Prompt tokens of a request.",
    TOKENS,
    "vllm:request_prompt_tokens",
    VLLM_TOKENS,
)
COMPUTED_PROMPT = _histogram(
    "hotshoe_request_computed_prompt_tokens",
    "Prompt tokens of a request that its first sequence did not find in the prefix cache.",
    TOKENS,
    "vllm:request_prefill_kv_computed_tokens",
    VLLM_TOKENS,
)
GENERATED_LENGTH = _histogram(
    "hotshoe_request_generated_tokens",
    "Tokens generated for a request.",
    TOKENS,
    "vllm:request_generation_tokens",
    VLLM_TOKENS,
)
LONGEST = _histogram(
    "hotshoe_request_longest_tokens",
    "Tokens of the longest sequence that a request got.",
    TOKENS,
    "vllm:request_max_num_generation_tokens",
    VLLM_TOKENS,
)
MAX_TOKENS = _histogram(
    "hotshoe_request_max_tokens",
    "Limit of tokens that a request set.",
    TOKENS,
    "vllm:request_params_max_tokens",
    VLLM_TOKENS,
)
NUM_SEQUENCES = _histogram(
    "hotshoe_request_sequences",
    "Sequences that a request asked for.",
    COUNTS,
    "vllm:request_params_n",
    VLLM_COUNTS,
)
FRONT_END = (
    *(REQUESTS, FAILED, REFUSED, ANSWERED, ANSWER_TIME, ANSWER_TIMES, TTFT, ITL, TPOT, E2E),
    *(
        QUEUE,
        PREFILL,
        DECODE,
        INFERENCE,
        PROMPT_LENGTH,
        COMPUTED_PROMPT,
        GENERATED_LENGTH,
        LONGEST,
        MAX_TOKENS,
    ),
    NUM_SEQUENCES,
)

#: Written by the exposition itself.
UP = Metric("hotshoe_engine_up", "gauge", "1 if the engine answers; without it, none of its own.")
RESTARTS = Metric("hotshoe_engine_restarts", "counter", "Engines that took over from a dead one.")
PROCESSES = Metric("hotshoe_api_processes", "gauge", "Processes that answer HTTP.")
INFO = Metric(
    "hotshoe_engine_info",
    "gauge",
    "Always 1; labels say version, platform, dtype, quantization, num_blocks and block_size.",
)
OWN = (UP, RESTARTS, PROCESSES, INFO)
#: Of no model in particular: who is turned away unread has named none.
WHOLE = (REFUSED, ANSWERED, ANSWER_TIME, ANSWER_TIMES, PROCESSES)

METRICS = (*ENGINE, *FRONT_END, *OWN)
