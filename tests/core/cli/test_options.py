"""Flags are generated from the configuration, and every field comes back from its flag."""

import argparse
from dataclasses import fields
from pathlib import Path

import pytest

from hotshoe.cli.options import (
    ENGINE_GROUPS,
    SAMPLING_DEFAULTS,
    SAMPLING_HELP,
    add_engine_flags,
    add_sampling_flags,
    engine_config,
    sampling_params,
)
from hotshoe.cli.parser import Parser
from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError, RequestError
from hotshoe.models.generation import FIELDS
from hotshoe.types import SamplingParams

# Sampling fields without a flag: the engine's --seed serves, or they make sense to programs only.
NO_FLAG = {
    "allowed_token_ids",
    "bad_words_token_ids",
    "detokenize",
    "extra_args",
    "grammar",
    "logit_bias",
    "logprob_token_ids",
    "prompt_logprobs",
    "repetition_detection",
    "seed",
}
# One value that is not the default, as words and as the field then holds it.
SAMPLES = {
    "model": (["tiny"], "tiny"),
    "revision": (["--revision", "main"], "main"),
    "download_dir": (["--download-dir", "/big/disk"], "/big/disk"),
    "tokenizer": (["--tokenizer", "dir"], "dir"),
    "chat_template": (["--chat-template", "a.jinja"], "a.jinja"),
    "model_impl": (["--model-impl", "native"], "native"),
    "dtype": (["--dtype", "bfloat16"], "bfloat16"),
    "quantization": (["--quantization", "int8"], "int8"),
    "quantization_cache_dir": (["--quantization-cache-dir", "/big/disk"], "/big/disk"),
    "quantization_cache_bytes": (["--quantization-cache-bytes", "1000"], 1000),
    "load_format": (["--load-format", "dummy"], "dummy"),
    "offload_weights": (["--offload-weights", r"layers\.[0-7]\."], r"layers\.[0-7]\."),
    "cpu_offload_gb": (["--cpu-offload-gb", "1.5"], 1.5),
    "check_weights": (["--check-weights"], True),
    "hf_overrides": (
        ["--hf-overrides.rope_scaling.factor", "2", "--hf-overrides", '{"a": 1}'],
        {"rope_scaling": {"factor": 2}, "a": 1},
    ),
    "max_model_len": (["--max-model-len", "77"], 77),
    "generation_config": (["--generation-config", "none"], "none"),
    "override_generation_config": (
        ["--override-generation-config", '{"top_k": 3}'],
        {"top_k": 3},
    ),
    "seed": (["--seed", "5"], 5),
    "platform": (["--platform", "null"], "null"),
    "platform_options": (["--platform-options.threads=2"], {"threads": 2}),
    "kernel": (
        ["--kernel", "attention=native", "--kernel", '{"linear": "reference"}'],
        {"attention": "native", "linear": "reference"},
    ),
    "check_candidates": (["--check-candidates"], True),
    "require_native": (["--require-native"], True),
    "batch_invariant": (["--batch-invariant"], True),
    "disable_plugins": (["--disable-plugins", "a", "--disable-plugins", "b"], ["a", "b"]),
    "enable_sleep_mode": (["--enable-sleep-mode"], True),
    "tensor_parallel_size": (["--tensor-parallel-size", "2"], 2),
    "enable_expert_parallel": (["--enable-expert-parallel"], True),
    "enable_eplb": (["--enable-eplb"], True),
    "num_redundant_experts": (["--num-redundant-experts", "2"], 2),
    "eplb_step_interval": (["--eplb-step-interval", "100"], 100),
    "pipeline_parallel_size": (["--pipeline-parallel-size", "2"], 2),
    "pipeline_layers": (["--pipeline-layers", "10,12"], [10, 12]),
    "pipeline_steps": (["--pipeline-steps", "3"], 3),
    "distributed_executor_backend": (["--distributed-executor-backend", "mp"], "mp"),
    "nnodes": (["--nnodes", "2"], 2),
    "master_addr": (["--master-addr", "10.0.0.1"], "10.0.0.1"),
    "master_port": (["--master-port", "5000"], 5000),
    "cluster_secret_file": (["--cluster-secret-file", "key"], "key"),
    "block_size": (["--block-size", "32"], 32),
    "kv_cache_dtype": (["--kv-cache-dtype", "fp8_e5m2"], "fp8_e5m2"),
    "kv_cache_memory_bytes": (["--kv-cache-memory-bytes", "1000"], 1000),
    "memory_share": (["--memory-share", "0.25"], 0.25),
    "enable_prefix_caching": (["--no-enable-prefix-caching"], False),
    "state_cache_mode": (["--state-cache-mode", "all"], "all"),
    "state_dtype": (["--state-dtype", "bfloat16"], "bfloat16"),
    "conv_state_dtype": (["--conv-state-dtype", "float32"], "float32"),
    "max_num_seqs": (["--max-num-seqs=3"], 3),
    "max_num_batched_tokens": (["--max-num-batched-tokens", "64"], 64),
    "enforce_eager": (["--enforce-eager"], True),
    "optimization_level": (["--optimization-level", "1"], 1),
    "scheduling_policy": (["--scheduling-policy", "priority"], "priority"),
    "async_scheduling": (["--no-async-scheduling"], False),
    "pooling": (["--pooling", "mean"], "mean"),
    "max_logprobs": (["--max-logprobs", "1"], 1),
    "logits_processors": (["--logits-processors", "a", "--logits-processors", "m:B"], ["a", "m:B"]),
    "skip_tokenizer_init": (["--skip-tokenizer-init"], True),
    "allow_special_tokens_in_text": (["--allow-special-tokens-in-text"], True),
    "enable_lora": (["--enable-lora"], True),
    "lora_modules": (["--lora-modules", "sql=path"], {"sql": "path"}),
    "max_loras": (["--max-loras", "2"], 2),
    "max_loras_ahead": (["--max-loras-ahead", "3"], 3),
    "max_lora_rank": (["--max-lora-rank", "64"], 64),
    "lora_host_memory_gib": (["--lora-host-memory-gib", "2.5"], 2.5),
    "lora_target_modules": (["--lora-target-modules", "q_proj"], ["q_proj"]),
    "speculative_config": (
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}'],
        {"method": "ngram", "num_speculative_tokens": 2},
    ),
    "structured_output_backend": (["--structured-output-backend", "xgrammar"], "xgrammar"),
    "structured_output_max_blanks": (["--structured-output-max-blanks", "2"], 2),
    "structured_output_one_of": (["--structured-output-one-of", "judged"], "judged"),
    "structured_output_cache_bytes": (["--structured-output-cache-bytes", "9"], 9),
    "structured_output_timeout_s": (["--structured-output-timeout-s", "2"], 2.0),
    "max_num_queued_reqs": (["--max-num-queued-reqs", "9"], 9),
    "max_queued_tokens": (["--max-queued-tokens", "900"], 900),
    "engine_stall_timeout_s": (["--engine-stall-timeout-s", "2.5"], 2.5),
    "load_timeout_s": (["--load-timeout-s", "90"], 90.0),
    "engine_restarts": (["--engine-restarts", "5"], 5),
}


def parse(*words: str) -> argparse.Namespace:
    parser = Parser("test", "test")
    add_engine_flags(parser)
    add_sampling_flags(parser)
    return parser.parse(words)


def test_every_field_has_a_sample() -> None:
    assert list(SAMPLES) == [f.name for f in fields(EngineConfig)]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_field_comes_back_from_its_flag(name: str) -> None:
    words, value = SAMPLES[name]
    config = engine_config(parse(*words))
    assert getattr(config, name) == value
    assert getattr(EngineConfig(), name) != value
    changed = {
        f.name for f in fields(config) if getattr(config, f.name) != getattr(EngineConfig(), f.name)
    }
    assert changed == {name}


@pytest.mark.parametrize("words", [["-O", "0"], ["-O0"], ["-O=0"], ["-O1", "-O0"]])
def test_an_optimization_level_has_a_short_form(words: list[str]) -> None:
    assert engine_config(parse("demo", *words)) == EngineConfig("demo", optimization_level=0)


@pytest.mark.parametrize("words", [["-O9"], ["-O", "x"], ["-O"]])
def test_a_level_that_is_none_is_refused_by_name(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"optimization[-_]level"):
        engine_config(parse("demo", *words))


def test_no_flag_means_defaults() -> None:
    assert engine_config(parse()) == EngineConfig()
    assert sampling_params(parse()) == SamplingParams(**SAMPLING_DEFAULTS)


def test_a_method_of_speculation_may_stand_alone(tmp_path: Path) -> None:
    wanted = {"method": "auto"}
    assert engine_config(parse("--speculative-config", "auto")).speculative_config == wanted
    file = tmp_path / "engine.yaml"
    file.write_text("speculative_config: auto\n")
    assert engine_config(parse("--config", str(file))).speculative_config == wanted
    more = parse("--speculative-config", "auto", "--speculative-config.x", "2")
    assert engine_config(more).speculative_config == {"method": "auto", "x": 2}
    with pytest.raises(ConfigError, match="has no key and value"):
        parse("--kernel", "attention")


def test_groups_start_at_fields() -> None:
    names = [f.name for f in fields(EngineConfig)]
    starts = [names.index(first) for first in ENGINE_GROUPS.values()]
    assert starts == sorted(starts)
    assert starts[0] == 0


def test_every_sampling_field_is_a_flag_or_known_not_to_be() -> None:
    assert set(SAMPLING_HELP) | NO_FLAG == {f.name for f in fields(SamplingParams)}
    assert not set(SAMPLING_HELP) & NO_FLAG


def test_sampling_flags() -> None:
    args = parse(
        "--temperature", "0", "--top-k", "5", "--stop", "a,b", "--stop", "c", "--ignore-eos"
    )
    params = sampling_params(args, max_tokens=9)
    expected = SamplingParams(
        temperature=0, top_k=5, stop=("a,b", "c"), ignore_eos=True, max_tokens=9
    )
    assert params == expected


def test_help_says_what_a_model_decides() -> None:
    parser = Parser("", "")
    add_sampling_flags(parser)
    said = {action.dest for action in parser._actions if "the model's, or" in str(action.help)}
    assert said == FIELDS
    assert "randomness; 0 always takes the most likely token (default: the model's, or 1.0)" in {
        action.help for action in parser._actions
    }


def test_bad_sampling_values_name_the_field() -> None:
    with pytest.raises(RequestError, match="top_p must be in"):
        sampling_params(parse("--top-p", "nan"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "engine.yaml"
    path.write_text(
        "model: from-file\nmax-num-seqs: 7\nkernel:\n  attention: a\n  linear: b\nseed: 3\n"
    )
    return path


def test_flags_win_over_the_file_and_the_file_over_defaults(file: Path) -> None:
    config = engine_config(parse("--config", str(file), "--seed", "4", "--kernel", "linear=c"))
    assert (config.model, config.max_num_seqs, config.seed) == ("from-file", 7, 4)
    assert config.kernel == {"attention": "a", "linear": "c"}


def test_overrides_win_over_all(file: Path) -> None:
    args = parse("--config", str(file), "--seed", "4")
    assert engine_config(args, seed=5).seed == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_num_seq: 3", r"unknown option max_num_seq; did you mean max_num_seqs\?"),
        ("- a", "must hold `option: value` lines"),
        ("1: 2", "must hold `option: value` lines"),
        ("a: [", "cannot read"),
        ("a: " + "[" * 10_000, "cannot read"),
        ("max_num_seqs: many", "max_num_seqs must be int"),
        ("max_num_seqs: 0", "max_num_seqs must be between 1 and"),
        ("seed: 1\ndtype: auto\nseed: 2", "'seed' stands there twice.*line 3"),
        ("kernel: {moe: a, moe: b}", "'moe' stands there twice"),
        ("max_num_seqs: 1\nmax-num-seqs: 2", "has max_num_seqs twice"),
        ("model: !!python/object/apply:os.getcwd []", "cannot read"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        engine_config(parse("--config", str(path)))


def test_an_empty_file_means_defaults(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n")
    assert engine_config(parse("--config", str(path))) == EngineConfig()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.yaml"):
        engine_config(parse("--config", str(tmp_path / "nowhere.yaml")))


def test_numbers_and_lists_as_people_write_them(tmp_path: Path) -> None:
    assert engine_config(parse("--max_model_len", "32k")).max_model_len == 32_000
    for word in ("auto", "-1"):
        assert engine_config(parse("--max-model-len", word)).max_model_len is None
    file = tmp_path / "options.yaml"
    file.write_text("max-model-len: 2K\nkv_cache_memory_bytes: 1G\ndisable_plugins: ui\n")
    found = engine_config(parse("--config", str(file)))
    assert (found.max_model_len, found.kv_cache_memory_bytes) == (2048, 2**30)
    assert found.disable_plugins == ["ui"]
    file.write_text("max_model_len: many\n")
    with pytest.raises(ConfigError, match="max_model_len must be"):
        engine_config(parse("--config", str(file)))
