"""The plugin: which formats this distribution offers. Imports none of them."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2

TOOL_FORMATS = {
    "deepseek_v3": "hotshoe_parsers.deepseek:V3",
    "deepseek_v31": "hotshoe_parsers.deepseek:V31",
    "granite": "hotshoe_parsers.granite:FORMAT",
    "harmony": "hotshoe_parsers.harmony:FORMAT",
    "hermes": "hotshoe_parsers.hermes:FORMAT",
    "llama3_json": "hotshoe_parsers.llama:FORMAT",
    "mistral": "hotshoe_parsers.mistral:FORMAT",
    "mistral_array": "hotshoe_parsers.mistral:ARRAY_FORMAT",
    "pythonic": "hotshoe_parsers.pythonic:FORMAT",
    "qwen3_xml": "hotshoe_parsers.qwen_xml:FORMAT",
}
REASONING_FORMATS = {
    "deepseek_r1": "hotshoe_parsers.thinking:DEEPSEEK_R1",
    "granite": "hotshoe_parsers.thinking:GRANITE",
    "harmony": "hotshoe_parsers.harmony:FORMAT",
    "mistral": "hotshoe_parsers.thinking:MISTRAL",
    "qwen3": "hotshoe_parsers.thinking:QWEN3",
}


@hookimpl
def hotshoe_tool_parsers() -> Mapping[str, str]:
    """Name the formats of tool calls as `--tool-call-parser` spells them."""
    return TOOL_FORMATS


@hookimpl
def hotshoe_reasoning_parsers() -> Mapping[str, str]:
    """Name the formats of reasoning as `--reasoning-parser` spells them."""
    return REASONING_FORMATS
