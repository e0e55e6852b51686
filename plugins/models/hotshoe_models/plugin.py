"""The plugin: which architectures this distribution offers. Imports no model and no torch."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2

ARCHITECTURES = {
    "Gemma2ForCausalLM": "hotshoe_models.gemma:build_gemma2",
    "Gemma3ForCausalLM": "hotshoe_models.gemma:build_gemma3",
    "GraniteForCausalLM": "hotshoe_models.granite:build",
    "LlamaForCausalLM": "hotshoe_models.llama:build",
    "MistralForCausalLM": "hotshoe_models.mistral:build",
    "Phi3ForCausalLM": "hotshoe_models.phi3:build",
    "Qwen2ForCausalLM": "hotshoe_models.qwen:build_qwen2",
    "Qwen3ForCausalLM": "hotshoe_models.qwen:build_qwen3",
    "SmolLM3ForCausalLM": "hotshoe_models.smollm3:build",
    # Without an output matrix, as models that make embeddings are published.
    "LlamaModel": "hotshoe_models.llama:build",
    "MistralModel": "hotshoe_models.mistral:build",
    "Qwen2Model": "hotshoe_models.qwen:build_qwen2",
    "Qwen3Model": "hotshoe_models.qwen:build_qwen3",
}


@hookimpl
def hotshoe_models() -> Mapping[str, str]:
    """Name the architectures as `architectures` in config.json spells them."""
    return ARCHITECTURES
