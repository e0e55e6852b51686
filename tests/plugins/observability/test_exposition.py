"""The text that is exposed, read back by the library's own parsers."""

import sys
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from hotshoe_observability import bounds, table
from hotshoe_observability.counts import Counts
from hotshoe_observability.exposition import HOTSHOE, VLLM, Snapshot, expose
from hotshoe_observability.recorder import Recorder

#: What vLLM's exposition has under names that we give too.
VLLM_NAMES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:prompt_tokens_cached_total",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:request_success_total",
    "vllm:cache_config_info",
    "vllm:lora_requests_info",
    "vllm:engine_sleep_state",
    "vllm:prompt_tokens_by_source_total",
    "vllm:corrupted_requests_total",
    *(
        f"vllm:{name}_{part}"
        for part in ("bucket", "sum", "count")
        for name in (
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "request_time_per_output_token_seconds",
            "e2e_request_latency_seconds",
            "request_queue_time_seconds",
            "request_prefill_time_seconds",
            "request_inference_time_seconds",
            "request_decode_time_seconds",
            "request_prompt_tokens",
            "request_prefill_kv_computed_tokens",
            "request_generation_tokens",
            "request_max_num_generation_tokens",
            "request_params_max_tokens",
            "request_params_n",
            "iteration_tokens_total",
        )
    ),
}


def samples(text: bytes) -> dict[tuple, float]:
    families = parse_plain(text.decode())
    return {
        (s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples
    }


def test_values(snapshot: Snapshot, make_record) -> None:
    recorder = Recorder(snapshot.counts)
    record = make_record()
    recorder.begin(record)
    recorder.advance(record, 1, 103.0)
    found = samples(expose([snapshot])[0])
    model = ("model", "demo")
    assert found["hotshoe_engine_up", model] == 1
    assert found["hotshoe_requests_running", model] == 3
    assert found["hotshoe_kv_cache_usage_ratio", model] == 0.4
    assert found["hotshoe_generated_tokens_total", model] == 77
    assert found["hotshoe_sequences_finished_total", model, ("reason", "stop")] == 5
    assert found["hotshoe_sequences_finished_total", model, ("reason", "abort")] == 0
    assert found["hotshoe_spec_decode_accepted_tokens_total", model] == 8
    assert found["hotshoe_expert_rearrangements_total", model] == 4
    assert found["hotshoe_experts_moved_total", model] == 9
    assert found["hotshoe_expert_imbalance_ratio", model] == 1.25
    places = {key: n for key, n in found.items() if key[0].endswith("tokens_per_pos_total")}
    assert {dict(key[1:])["position"]: n for key, n in places.items()} == {"0": 6, "1": 2}
    assert found["hotshoe_requests_total", ("endpoint", "/v1/completions"), model] == 1
    name = "hotshoe_time_to_first_token_seconds"
    assert found[f"{name}_bucket", ("le", "2.5"), model] == 0
    assert found[f"{name}_bucket", ("le", "5.0"), model] == 1
    assert found[f"{name}_bucket", ("le", "+Inf"), model] == 1
    assert found[f"{name}_count", model] == 1
    assert found[f"{name}_sum", model] == 3.0


def test_every_metric_of_the_table_is_there(snapshot: Snapshot) -> None:
    families = {family.name: family for family in parse_plain(expose([snapshot])[0].decode())}
    assert families.keys() == {metric.name for metric in table.METRICS}
    for metric in table.METRICS:
        assert families[metric.name].type == metric.kind
        assert families[metric.name].documentation == metric.help


def test_names_of_vllm(snapshot: Snapshot) -> None:
    text = expose([snapshot], (HOTSHOE, VLLM))[0]
    found = samples(text)
    names = {name for name, *_ in found}
    assert {name for name in names if name.startswith("vllm:")} == VLLM_NAMES
    labels = (("engine", "0"), ("model_name", "demo"))
    assert found["vllm:num_requests_running", *labels] == 3
    success = ("vllm:request_success_total", labels[0], ("finished_reason", "stop"), labels[1])
    assert found[success] == 5
    [cache] = [dict(rest) for (name, *rest) in found if name == "vllm:cache_config_info"]
    assert cache.pop("num_gpu_blocks") == "10" and cache.pop("cache_dtype") == "bfloat16"
    assert cache.pop("block_size") == "16" and cache.pop("enable_prefix_caching") == "True"
    assert cache == dict(labels)
    # The process's own families come from the library, and from nowhere but Linux.
    assert ("process_resident_memory_bytes" in names) == (sys.platform == "linux")
    own = {name for name in names if name.startswith("hotshoe_")}
    assert own == {name for name, *_ in samples(expose([snapshot])[0])}


def test_http_answers_are_counted_by_route_method_and_status(snapshot: Snapshot) -> None:
    recorder = Recorder(snapshot.counts)
    for status in (200, 200, 404, 503):
        recorder.answered("POST", "/v1/completions", status, 0.3)
    recorder.answered("GET", "/somewhere/else", 200, 7.0)
    recorder.answered("GET", "/metrics", 200, 0.1)
    found = samples(expose([snapshot], (HOTSHOE, VLLM))[0])
    counted = {
        tuple(dict(key[1:])[label] for label in ("handler", "method", "status")): value
        for key, value in found.items()
        if key[0] == "http_requests_total" and value
    }
    assert counted == {
        ("/v1/completions", "POST", "2xx"): 2,
        ("/v1/completions", "POST", "4xx"): 1,
        ("/v1/completions", "POST", "5xx"): 1,
        ("other", "GET", "2xx"): 1,
    }
    labels = (("handler", "/v1/completions"), ("method", "POST"), ("model", "demo"))
    assert found["hotshoe_http_requests_total", *labels, ("status", "2xx")] == 2
    here = (("engine", "0"), ("handler", "/v1/completions"))
    named = (("method", "POST"), ("model_name", "demo"))
    name = "http_request_duration_seconds"
    taken = {
        le: found[f"{name}_bucket", *here, ("le", le), *named]
        for le in ("0.1", "0.5", "1.0", "+Inf")
    }
    assert taken == {"0.1": 0, "0.5": 4, "1.0": 4, "+Inf": 4}
    assert found[f"{name}_sum", *here, *named] == pytest.approx(1.2)
    name, everywhere = "http_request_duration_highr_seconds", (("engine", "0"), named[1])
    assert found[f"{name}_bucket", everywhere[0], ("le", "7.5"), everywhere[1]] == 5
    assert found[f"{name}_count", *everywhere] == 5


def test_what_the_engine_counts_under_the_names_of_vllm(snapshot: Snapshot) -> None:
    found = samples(expose([snapshot], (HOTSHOE, VLLM))[0])
    labels = (("engine", "0"), ("model_name", "demo"))
    name = "vllm:iteration_tokens_total"
    steps = [
        found[f"{name}_bucket", labels[0], ("le", le), labels[1]] for le in ("1.0", "8.0", "+Inf")
    ]
    assert steps == [4, 4, 5]
    assert (found[f"{name}_sum", *labels], found[f"{name}_count", *labels]) == (40, 5)
    sources = {
        dict(rest)["source"]: value
        for (name, *rest), value in found.items()
        if name == "vllm:prompt_tokens_by_source_total"
    }
    assert sources == {"local_compute": 30, "local_cache_hit": 20}
    assert found["vllm:corrupted_requests_total", *labels] == 2
    assert found["vllm:prompt_tokens_cached_total", *labels] == 20
    name = "vllm:num_requests_waiting_by_reason"
    waits = {dict(rest)["reason"]: n for (key, *rest), n in found.items() if key == name}
    assert waits == {"capacity": 2, "deferred": 1}
    [used] = [dict(rest) for (name, *rest) in found if name == "vllm:lora_requests_info"]
    assert used == {
        "max_lora": "4",
        "running_lora_adapters": "a,b",
        "waiting_lora_adapters": "b,c",
    }


@pytest.mark.parametrize(
    ("level", "state"),
    [(None, "awake"), (0, "awake"), (1, "weights_offloaded"), (2, "discard_all")],
)
def test_where_the_weights_are(snapshot: Snapshot, level: int | None, state: str) -> None:
    asleep = replace(snapshot, stats=replace(snapshot.stats, sleep_level=level))
    found = samples(expose([asleep], (HOTSHOE, VLLM))[0])
    states = {
        dict(rest)["sleep_state"]: value
        for (name, *rest), value in found.items()
        if name == "vllm:engine_sleep_state"
    }
    assert states == {name: name == state for name in table.SLEEP_STATES}
    assert found["hotshoe_engine_sleeping", ("model", "demo")] == (level is not None)


def test_without_adapters_none_are_told(snapshot: Snapshot) -> None:
    snapshot.info.config.enable_lora = False
    assert b"lora" not in expose([snapshot], (HOTSHOE, VLLM))[0]


def test_an_engine_that_does_not_answer(snapshot: Snapshot) -> None:
    found = samples(expose([replace(snapshot, stats=None)])[0])
    assert found["hotshoe_engine_up", ("model", "demo")] == 0
    names = {name for name, *_ in found}
    assert "hotshoe_requests_running" not in names
    assert "hotshoe_time_to_first_token_seconds_count" in names


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "text/plain"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics"),
    ],
)
def test_the_format_that_is_asked_for(snapshot: Snapshot, accept: str, kind: str) -> None:
    text, content_type = expose([snapshot], accept=accept)
    assert content_type.startswith(kind)
    families = list((parse_open if "open" in kind else parse_plain)(text.decode()))
    assert len(families) == len(table.METRICS)


def test_odd_names_of_models_are_escaped(snapshot: Snapshot) -> None:
    name = 'a"b\\c\nd'
    found = samples(expose([replace(snapshot, model=name)])[0])
    assert found["hotshoe_engine_up", ("model", name)] == 1


def test_info(snapshot: Snapshot) -> None:
    [labels] = [dict(rest) for (name, *rest) in samples(expose([snapshot])[0]) if "info" in name]
    assert labels["platform"] == "null"
    assert labels["quantization"] == "none"
    assert labels["num_blocks"] == "10"


def test_each_set_of_names_has_its_own_buckets(snapshot: Snapshot) -> None:
    for seconds in (0.0007, 0.03, 0.3, 3.0, 3000.0):
        snapshot.counts.observe(table.TTFT, seconds)
    found = samples(expose([snapshot], (HOTSHOE, VLLM))[0])
    for names, name, own in (
        (HOTSHOE, table.TTFT.name, bounds.SECONDS),
        (VLLM, table.TTFT.vllm, bounds.VLLM_FIRST),
    ):
        buckets = {
            float(dict(key[1:])["le"]): value
            for key, value in found.items()
            if key[0] == f"{name}_bucket"
        }
        assert sorted(buckets) == [*own, float("inf")], names
        for bound, count in buckets.items():
            assert count == sum(s <= bound for s in (0.0007, 0.03, 0.3, 3.0, 3000.0))


@pytest.mark.parametrize("names", [(HOTSHOE,), (HOTSHOE, VLLM)])
def test_several_models_have_series_of_their_own(snapshot, make_record, names) -> None:
    whole = Counts()
    other = replace(snapshot, model="other", stats=None, counts=Counts(), num_restarts=2)
    by_name = {"demo": snapshot.counts, "other": other.counts}
    recorder = Recorder(whole, by_name.__getitem__)
    for served in ("demo", "other", "other"):
        recorder.begin(make_record(served=served, model="an alias"))
        recorder.end(make_record(served=served))
    recorder.refuse("/v1/completions", "queue_full")
    text = expose([snapshot, other], names, whole=whole)[0].decode()
    requests = {m: v for (n, m), v in plain(text).items() if n == "hotshoe_requests_total"}
    assert requests == {"demo": 1, "other": 2}
    ended = {m: v for (n, m), v in plain(text).items() if n == "hotshoe_request_seconds_count"}
    assert ended == {"demo": 1, "other": 2}
    up = {m: v for (n, m), v in plain(text).items() if n == "hotshoe_engine_up"}
    assert up == {"demo": 1, "other": 0}
    running = {m: v for (n, m), v in plain(text).items() if n == "hotshoe_requests_running"}
    assert running == {"demo": 3}
    assert sum(v for (n, m), v in plain(text).items() if "refused_total" in n and m == "") == 1


def plain(text: str) -> dict[tuple[str, str], float]:
    """Return numbers by name and model, added up over other labels."""
    found: dict[tuple[str, str], float] = {}
    for family in parse_plain(text):
        for sample in family.samples:
            key = sample.name, sample.labels.get("model", "")
            found[key] = found.get(key, 0) + sample.value
    return found
