"""The plugin: which formats this distribution offers. Imports none of them."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2

TOOL_FORMATS = {
    "apertus": "hotshoe_parsers.json_calls:APERTUS",
    "cohere_command3": "hotshoe_parsers.json_calls:COHERE",
    "deepseek_v3": "hotshoe_parsers.deepseek:V3",
    "deepseek_v31": "hotshoe_parsers.deepseek:V31",
    "deepseek_v32": "hotshoe_parsers.xml_calls:DEEPSEEK_V32",
    "deepseek_v4": "hotshoe_parsers.xml_calls:DEEPSEEK_V4",
    "functiongemma": "hotshoe_parsers.gemma:FUNCTION",
    "gemma4": "hotshoe_parsers.gemma:FORMAT",
    "gigachat3": "hotshoe_parsers.json_calls:GIGACHAT",
    "glm45": "hotshoe_parsers.xml_calls:GLM45",
    "granite": "hotshoe_parsers.json_calls:GRANITE",
    "granite_20b_fc": "hotshoe_parsers.json_calls:GRANITE_20B",
    "harmony": "hotshoe_parsers.harmony:FORMAT",
    "hermes": "hotshoe_parsers.json_calls:HERMES",
    "hunyuan_a13b": "hotshoe_parsers.json_calls:HUNYUAN",
    "internlm": "hotshoe_parsers.json_calls:INTERNLM",
    "jamba": "hotshoe_parsers.json_calls:JAMBA",
    "kimi_k2": "hotshoe_parsers.kimi:FORMAT",
    "kimi_k3": "hotshoe_parsers.kimi_k3:FORMAT",
    "llama3_json": "hotshoe_parsers.llama:FORMAT",
    "longcat": "hotshoe_parsers.json_calls:LONGCAT",
    "minimax_m2": "hotshoe_parsers.xml_calls:MINIMAX_M2",
    "minimax_m3": "hotshoe_parsers.minimax:FORMAT",
    "mistral": "hotshoe_parsers.mistral:FORMAT",
    "mistral_array": "hotshoe_parsers.mistral:ARRAY_FORMAT",
    "olmo3": "hotshoe_parsers.pythonic:OLMO3",
    "phi4_mini_json": "hotshoe_parsers.json_calls:PHI4",
    "pythonic": "hotshoe_parsers.pythonic:FORMAT",
    "qwen3_xml": "hotshoe_parsers.xml_calls:QWEN3_XML",
    "seed_oss": "hotshoe_parsers.xml_calls:SEED_OSS",
    "solar_open": "hotshoe_parsers.solar:FORMAT",
    "solar_open2": "hotshoe_parsers.xml_calls:SOLAR",
    "step3": "hotshoe_parsers.xml_calls:STEP3",
    "xlam": "hotshoe_parsers.json_calls:XLAM",
}
REASONING_FORMATS = {
    "apertus": "hotshoe_parsers.answers:APERTUS",
    "cohere_command3": "hotshoe_parsers.answers:COHERE",
    "deepseek_r1": "hotshoe_parsers.thinking:DEEPSEEK_R1",
    "gemma4": "hotshoe_parsers.thinking:GEMMA4",
    "granite": "hotshoe_parsers.thinking:GRANITE",
    "harmony": "hotshoe_parsers.harmony:FORMAT",
    "hunyuan_a13b": "hotshoe_parsers.thinking:HUNYUAN",
    "kimi_k3": "hotshoe_parsers.answers:KIMI_K3",
    "minimax_m3": "hotshoe_parsers.answers:MINIMAX",
    "mistral": "hotshoe_parsers.thinking:MISTRAL",
    "qwen3": "hotshoe_parsers.thinking:QWEN3",
    "seed_oss": "hotshoe_parsers.thinking:SEED_OSS",
    "solar_open": "hotshoe_parsers.answers:SOLAR_OPEN",
    "solar_open2": "hotshoe_parsers.answers:SOLAR",
}
#: Of models whose publishers give a program in the place of a template, by architecture.
CHAT_TEMPLATES = {
    "DeepseekV32ForCausalLM": "hotshoe_parsers.templates:DEEPSEEK_V32",
    "DeepseekV4ForCausalLM": "hotshoe_parsers.templates:DEEPSEEK_V4",
}


@hookimpl
def hotshoe_tool_parsers() -> Mapping[str, str]:
    """Name the formats of tool calls as `--tool-call-parser` spells them."""
    return TOOL_FORMATS


@hookimpl
def hotshoe_reasoning_parsers() -> Mapping[str, str]:
    """Name the formats of reasoning as `--reasoning-parser` spells them."""
    return REASONING_FORMATS


@hookimpl
def hotshoe_chat_templates() -> Mapping[str, str]:
    """Name the templates of architectures."""
    return CHAT_TEMPLATES
