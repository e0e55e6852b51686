"""Command lines written for vLLM."""

import pytest

from hotshoe.cli.parser import Parser
from hotshoe.errors import ConfigError
from hotshoe_server.command import Serve
from hotshoe_server.vllm_flags import FLAGS, SAME, VALUE, VALUES, rewrite
from hotshoe_server.vllm_short import SHORT


@pytest.fixture(scope="module")
def parser() -> Parser:
    parser = Parser("hotshoe serve", "a test")
    Serve().add_arguments(parser)
    return parser


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--model", "m", "--dtype", "auto"], ["m", "--dtype", "auto"]),
        (["-tp", "2"], ["--tensor-parallel-size", "2"]),
        (["-pp", "2"], ["--pipeline-parallel-size", "2"]),
        (["--distributed-executor-backend", "ray"], ["--distributed-executor-backend", "ray"]),
        (["-tp=2"], ["--tensor-parallel-size=2"]),
        (
            ["--gpu-memory-utilization=0.9"],
            ["--platform-options.memory_fraction", "0.9"],
        ),
        (["m", "--rope-theta", "1e6"], ["m", "--hf-overrides", "rope_theta=1e6"]),
        (["--disable-frontend-multiprocessing"], ["--no-engine-process"]),
        (["-ep"], ["--enable-expert-parallel"]),
        (["--no-headless"], []),
        (["--tool-call-parser", "qwen3_coder"], ["--tool-call-parser", "qwen3_xml"]),
        (["--reasoning-parser=openai_gptoss"], ["--reasoning-parser=harmony"]),
        (["--model-impl", "transformers"], ["--model-impl", "transformers"]),
        (["--model-impl=vllm"], ["--model-impl=native"]),
        (["--kv-cache-dtype", "fp8_e4m3"], ["--kv-cache-dtype", "fp8"]),
        (["--tool-call-parser", "hermes"], ["--tool-call-parser", "hermes"]),
        (["--tool-call-parser"], ["--tool-call-parser"]),
        (["-O3", "-O", "1"], ["-O3", "-O", "1"]),
        (["--attention-backend", "FLASHINFER"], ["--kernel", "attention=flashinfer"]),
        (["--attention-backend=cudnn"], ["--kernel", "attention=cudnn"]),
        (["--attention-config.backend", "TRITON_ATTN"], ["--kernel", "attention=triton"]),
        (["-ac", '{"backend": null}'], []),
        (["--moe-backend", "auto"], []),
        (["--linear-backend", "triton"], ["--kernel", "linear=triton"]),
        (
            ["--structured-outputs-config", '{"backend": "guidance", "disable_fallback": false}'],
            ["--structured-output-backend", "llguidance"],
        ),
        (["--guided-decoding-backend", "guidance"], ["--structured-output-backend", "llguidance"]),
        (
            ["--structured-outputs-config.disable_any_whitespace", "true"],
            ["--structured-output-max-blanks", "0"],
        ),
        (["--structured-outputs-config", '{"disable_any_whitespace": false}'], []),
        (
            ["--eplb-config", '{"num_redundant_experts": 2, "step_interval": 500}'],
            ["--num-redundant-experts", "2", "--eplb-step-interval", "500"],
        ),
        (["--override-pooler-config", '{"pooling_type": "MEAN"}'], ["--pooling", "mean"]),
        (["--profiler-config.torch_profiler_dir", "/p"], ["--profile-dir", "/p"]),
        (
            ["--speculative-model", "[ngram]", "--num-speculative-tokens", "3"],
            [
                *("--speculative-config.method", "ngram"),
                *("--speculative-config.num_speculative_tokens", "3"),
            ],
        ),
        (
            ["--spec-method", "mimo_mtp", "--spec-tokens", "1"],
            [
                *("--speculative-config.method", "mtp"),
                *("--speculative-config.num_speculative_tokens", "1"),
            ],
        ),
        (["-sc", '{"method": "suffix"}'], ["--speculative-config", '{"method": "suffix"}']),
        (["--load-format", "mistral"], ["--load-format", "safetensors"]),
        (
            ["--load-format", "auto", "--dtype=half"],
            ["--load-format", "safetensors", "--dtype=float16"],
        ),
        (["-q", "awq_marlin"], ["--quantization", "awq"]),
        (["--shutdown-timeout", "5"], ["--shutdown-timeout-s", "5"]),
        (["--no-enable-prefix-caching"], ["--no-enable-prefix-caching"]),
        (["m", "--", "--model"], ["m", "--", "--model"]),
    ],
)
def test_words_that_mean_something_here(words: list[str], found: list[str]) -> None:
    said: list[str] = []
    assert rewrite(words, said.append) == found
    assert said == []


@pytest.mark.parametrize(
    "words",
    [
        ["--trust-remote-code"],
        ["--enable-chunked-prefill"],
        ["--compilation-config", '{"mode": 3}'],
        ["--compilation-config.mode", "3"],
        ["-O.mode", "3"],
        ["--decode-context-parallel-size", "1"],
        ["--allowed-headers", '[ "*" ]'],
        ["--disable-log-stats"],
        ["--root-path", "/x"],
        ["--tokenizer-mode", "mistral"],
        ["--config-format", "mistral"],
        ["--profiler-config.profiler", "torch"],
    ],
)
def test_words_of_no_effect_are_said(words: list[str]) -> None:
    said: list[str] = []
    assert rewrite(["m", *words], said.append) == ["m"]
    [line] = said
    assert "of vLLM has no effect here" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--headless"], "--headless of vLLM is not offered here: engines and"),
        (
            ["--decode-context-parallel-size", "2"],
            "--decode-context-parallel-size 2 of vLLM is not offered here",
        ),
        (["--no-enable-chunked-prefill"], "--no-enable-chunked-prefill of vLLM is not offered"),
        (["--attention-config", "X"], "--attention-config takes a JSON object, not 'X'"),
        (["--attention-config", "[" * 50_000], "--attention-config takes a JSON object"),
        (["--eplb-config.window_size", "9"], "--eplb-config: window_size of vLLM is not offered"),
        (["--eplb-config", '{"step_interval": [1]}'], "--eplb-config: step_interval of vLLM"),
        (["--allowed-headers", "[" * 5000], "--allowed-headers"),
        (["--swap-space"], "--swap-space needs a value"),
    ],
)
def test_words_that_cannot_be_honored_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        rewrite(words, print)


def test_the_table_is_about_flags_that_are_not_here(parser: Parser) -> None:
    own = parser._option_string_actions
    names = [flag.name for flag in FLAGS]
    assert len(names) == len(set(names))
    for flag in FLAGS:
        assert flag.name not in own, f"{flag.name} is here; take it out of the table"
        assert flag.why or flag.to or flag.keys, flag.name
        for words in (flag.to, *flag.keys.values()):
            target = words[0].partition(".")[0] if words else "--config"
            assert target in (*own, VALUE), f"{flag.name} leads to {target}, which is not here"
    assert set(SAME) <= own.keys()
    for name in SHORT.values():
        assert name in own or name in names


def test_a_whole_command_line(parser: Parser, caplog) -> None:
    line = (
        "--model m --max_model_len 32k -tp 2 --trust-remote-code --gpu-memory-utilization 0.8 "
        "--served-model-name a b --enable-chunked-prefill --disable-log-stats"
    )
    found = parser.parse(line.split())
    assert (found.model, found.max_model_len, found.tensor_parallel_size) == ("m", 32_000, 2)
    assert found.served_model_name == ["a", "b"]
    assert found.platform_options == {"memory_fraction": 0.8}
    assert sum("has no effect here" in message for message in caplog.messages) == 3


def test_parsers_of_another_name_are_here(plugins) -> None:
    for flag, hook in (
        ("--tool-call-parser", "hotshoe_tool_parsers"),
        ("--reasoning-parser", "hotshoe_reasoning_parsers"),
    ):
        known = plugins.mapping(hook)
        for other, name in VALUES[flag].items():
            assert name in known and other not in known


def test_origins_may_come_as_json(parser: Parser) -> None:
    for words in (["*"], ['["*"]']):
        assert parser.parse_args(["m", "--allowed-origins", *words]).allowed_origins == ["*"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--generation-config", "vllm"], ["--generation-config", "none"]),
        (["--load-format=runai_streamer"], ["--load-format=safetensors"]),
        (["--lora-modules", '{"name": "a", "path": "/b"}'], ["--lora-modules", "a=/b"]),
        (["--lora-modules", "a=/b"], ["--lora-modules", "a=/b"]),
        (["--lora-modules", '{"a": "/b"}'], ["--lora-modules", '{"a": "/b"}']),
    ],
)
def test_values_of_another_name(words: list[str], found: list[str]) -> None:
    assert rewrite(words, print) == found
