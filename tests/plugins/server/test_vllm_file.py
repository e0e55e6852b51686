"""Files that were written for `vllm serve`."""

from datetime import date

import pytest

from hotshoe.cli.options import add_engine_flags, add_option_flags
from hotshoe.cli.parser import Parser
from hotshoe.errors import ConfigError
from hotshoe_server.config import SERVER_GROUPS, ServerConfig
from hotshoe_server.vllm_file import own_options
from hotshoe_server.vllm_flags import rewrite


@pytest.fixture
def parser() -> Parser:
    parser = Parser("hotshoe serve", "serve")
    parser.rewrite = lambda words: rewrite(words, print)
    add_engine_flags(parser)
    add_option_flags(parser, ServerConfig, SERVER_GROUPS)
    return parser


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({}, {}),
        ({"model": "a=b", "max_model_len": "4k"}, {"model": "a=b", "max_model_len": "4k"}),
        ({"gpu_memory_utilization": 0.9}, {"platform_options": {"memory_fraction": 0.9}}),
        ({"api_server_count": 2, "swap_space": 4}, {"api_processes": 2}),
        ({"api_server_count": 2, "api_processes": 3}, {"api_processes": 3}),
        ({"tool_call_parser": "qwen3_coder"}, {"tool_call_parser": "qwen3_xml"}),
        ({"disable_frontend_multiprocessing": True}, {"engine_process": False}),
        ({"disable_frontend_multiprocessing": False, "trust_remote_code": False}, {}),
        ({"trust_remote_code": True, "limit_mm_per_prompt": {"image": 2}}, {}),
        ({"attention_config": {"backend": "FLASH_ATTN"}}, {"kernel": {"attention": "flash3"}}),
        ({"nonsense": 1}, {"nonsense": 1}),
        ({"speculative_config": {"method": "mimo_mtp"}}, {"speculative_config": {"method": "mtp"}}),
        (
            {"lora_modules": [{"name": "a", "path": "b"}, "c=d"]},
            {"lora_modules": {"a": "b", "c": "d"}},
        ),
        ({"lora_modules": {"a": "b"}}, {"lora_modules": {"a": "b"}}),
        (
            {"models": {"a": "x", "b": {"model": "y", "gpu-memory-utilization": 0.9}, "c": 3}},
            {
                "models": {
                    "a": {"model": "x"},
                    "b": {"model": "y", "platform_options": {"memory_fraction": 0.9}},
                    "c": 3,
                }
            },
        ),
    ],
)
def test_names_of_vllm_in_a_file(parser: Parser, values, found) -> None:
    assert own_options(values, parser) == found


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"enable_chunked_prefill": False}, "--no-enable-chunked-prefill of vLLM is not offered"),
        ({"tokenizer_revision": date(2024, 1, 2)}, "--tokenizer-revision of vLLM is not offered"),
        ({"kv_transfer_config": {}}, "--kv-transfer-config of vLLM is not offered"),
        ({"gpu_memory_utilization": None, "data_parallel_size": 2}, "start several servers"),
    ],
)
def test_what_cannot_be_honored_is_named(parser: Parser, values, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        own_options(values, parser)
