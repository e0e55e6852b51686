"""Classes that see or hear, and the architectures of their text parts. Imports no model."""

#: The text part of Kimi K2.5, by its own name and by that of its shape.
KIMI = dict.fromkeys(("deepseek_v3", "kimi_k2"), "DeepseekV3ForCausalLM")
#: Classes of models that see or hear: the families of their text parts, by `model_type` (the first
#: is that of a file that does not say), and the architectures that those are.
COMPOSITES = {
    "Apertus1p5ForConditionalGeneration": {"apertus1p5_text": "Apertus1p5TextForCausalLM"},
    "AyaVisionForConditionalGeneration": {"cohere2": "Cohere2ForCausalLM"},
    "Cohere2VisionForConditionalGeneration": {"cohere2": "Cohere2ForCausalLM"},
    "Dots3NoteForConditionalGeneration": {"dots3_note_text": "Dots3NoteForCausalLM"},
    "Ernie4_5_VLMoeForConditionalGeneration": {"ernie4_5_vl_moe_text": "Ernie4_5_VLMoeTextModel"},
    "Exaone4_5_ForConditionalGeneration": {"exaone4": "Exaone4ForCausalLM"},
    "Gemma3ForConditionalGeneration": {"gemma3_text": "Gemma3ForCausalLM"},
    "Gemma3ForSequenceClassification": {"gemma3_text": "Gemma3TextForSequenceClassification"},
    "Gemma3nForConditionalGeneration": {"gemma3n_text": "Gemma3nForCausalLM"},
    "Gemma4ForConditionalGeneration": {"gemma4_text": "Gemma4ForCausalLM"},
    "Gemma4UnifiedForConditionalGeneration": {"gemma4_unified_text": "Gemma4UnifiedForCausalLM"},
    "Glm46VForConditionalGeneration": {
        "glm4v_text": "Glm4vTextModel",
        "glm4v_moe_text": "Glm4vMoeTextModel",
    },
    "Glm4vForConditionalGeneration": {"glm4v_text": "Glm4vTextModel"},
    "Glm5NextForConditionalGeneration": {"glm5_next_text": "Glm5NextTextModel"},
    "Glm4vMoeForConditionalGeneration": {"glm4v_moe_text": "Glm4vMoeTextModel"},
    "HYV4VLForConditionalGeneration": {"hy_v4_vl_text": "HYV4VLTextModel"},
    "Idefics2ForConditionalGeneration": {"mistral": "MistralForCausalLM"},
    "Idefics3ForConditionalGeneration": {"llama": "LlamaForCausalLM"},
    "InklingForConditionalGeneration": {"inkling_text": "InklingForCausalLM"},
    "InternVLForConditionalGeneration": {
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
        "qwen3_moe": "Qwen3MoeForCausalLM",
        "llama": "LlamaForCausalLM",
        "gpt_oss": "GptOssForCausalLM",
    },
    "KimiK25ForConditionalGeneration": KIMI,
    "Kimi_K25ForConditionalGeneration": KIMI,
    "Lfm2VlForConditionalGeneration": {"lfm2": "Lfm2ForCausalLM"},
    "Llama4ForConditionalGeneration": {"llama4_text": "Llama4ForCausalLM"},
    "LlavaForConditionalGeneration": {
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
    },
    "LlavaNextForConditionalGeneration": {
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "granite": "GraniteForCausalLM",
    },
    "LlavaOnevisionForConditionalGeneration": {"qwen2": "Qwen2ForCausalLM"},
    "MiniMaxM3SparseForConditionalGeneration": {"minimax_m3_vl_text": "MiniMaxM3VLForCausalLM"},
    "MiniCPMV4_6ForConditionalGeneration": {"qwen3_5_text": "Qwen3_5ForCausalLM"},
    "MuseGlimmerForConditionalGeneration": {"muse_glimmer_text": "MuseGlimmerTextModel"},
    "MuseSparkForConditionalGeneration": {"muse_spark_text": "MuseSparkTextModel"},
    "Mistral3ForConditionalGeneration": {
        "mistral": "MistralForCausalLM",
        "ministral3": "Ministral3ForCausalLM",
        "mistral4": "Mistral4ForCausalLM",
    },
    "MistralLarge4ForConditionalGeneration": {"mistral_large4_text": "MistralLarge4TextModel"},
    "MllamaForConditionalGeneration": {"mllama_text_model": "MllamaForCausalLM"},
    "Qwen2VLForConditionalGeneration": {"qwen2_vl_text": "Qwen2VLTextModel"},
    "Qwen2_5_VLForConditionalGeneration": {"qwen2_5_vl_text": "Qwen2_5_VLTextModel"},
    "Qwen3VLForConditionalGeneration": {"qwen3_vl_text": "Qwen3VLTextModel"},
    "Qwen3VLMoeForConditionalGeneration": {"qwen3_vl_moe_text": "Qwen3VLMoeTextModel"},
    "SmolVLMForConditionalGeneration": {"llama": "LlamaForCausalLM"},
    "Step3p7ForConditionalGeneration": {"step3p5": "Step3p5ForCausalLM"},
    "VoxtralForConditionalGeneration": {"llama": "LlamaForCausalLM"},
    "Qwen3_5ForConditionalGeneration": {"qwen3_5_text": "Qwen3_5ForCausalLM"},
    "Qwen3_5MoeForConditionalGeneration": {"qwen3_5_moe_text": "Qwen3_5MoeForCausalLM"},
    "Qwen4ExpForConditionalGeneration": {"qwen4_exp_text": "Qwen4ExpForCausalLM"},
    "Cosmos3EdgeForConditionalGeneration": {"cosmos3_edge_text": "Cosmos3EdgeTextModel"},
    "Cosmos3OmniForConditionalGeneration": {"qwen3_vl_text": "Qwen3VLTextModel"},
    "FastVlmForConditionalGeneration": {"qwen2": "Qwen2ForCausalLM"},
    "Granite4VisionForConditionalGeneration": {"granite4_vision_text": "GraniteForCausalLM"},
    "NemotronH_Omni_Reasoning_V3": {"nemotron_h": "NemotronHForCausalLM"},
    "Qwen3_5ForSequenceClassification": {"qwen3_5_text": "Qwen3_5TextForSequenceClassification"},
    "Blip2ForConditionalGeneration": {"opt": "OPTForCausalLM"},
    "DeepseekVLForConditionalGeneration": {"llama": "LlamaForCausalLM"},
    "HyperCLOVAXVisionV2ForConditionalGeneration": {"hyperclovax": "HyperCLOVAXForCausalLM"},
    "Lfm3VlForConditionalGeneration": {"lfm3": "Lfm3ForCausalLM"},
    "LlavaNextVideoForConditionalGeneration": {
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
    },
    "Molmo2ForConditionalGeneration": {"molmo2_text": "Molmo2TextModel"},
    "MiniCPMV4_7ForConditionalGeneration": {"qwen3_5_text": "Qwen3_5ForCausalLM"},
    "Ovis2ForConditionalGeneration": {"qwen2": "Qwen2ForCausalLM"},
    "Qwen2AudioForConditionalGeneration": {"qwen2": "Qwen2ForCausalLM"},
    "VideoLlama3ForConditionalGeneration": {"qwen2": "Qwen2ForCausalLM"},
}
#: Those of classes whose code is published beside their checkpoints.
COMPOSITES |= {
    "BeeForConditionalGeneration": {"qwen3": "Qwen3ForCausalLM"},
    "DeepseekOCRForCausalLM": {"deepseek_v2": "DeepseekV2ForCausalLM"},
    "DeepseekVLV2ForCausalLM": {"deepseek_v2": "DeepseekV2ForCausalLM"},
    "DotsOCRForCausalLM": {"dots_ocr": "Qwen2ForCausalLM"},
    "H2OVLChatModel": {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"},
    "HCXVisionForCausalLM": {"llama": "LlamaForCausalLM", "hyperclovax": "HyperCLOVAXForCausalLM"},
    "InternS1ForConditionalGeneration": {
        "qwen3": "Qwen3ForCausalLM",
        "qwen3_moe": "Qwen3MoeForCausalLM",
    },
    "IsaacForConditionalGeneration": {"qwen3": "Qwen3VLTextModel"},
    "KeyeForConditionalGeneration": {"Keye": "Qwen3VLTextModel"},
    "KeyeVL1_5ForConditionalGeneration": {"KeyeVL1_5": "Qwen3VLTextModel"},
    "KimiVLForConditionalGeneration": KIMI,
    "Llama_Nemotron_Nano_VL": {"llama": "LlamaForCausalLM"},
    "MantisForConditionalGeneration": {"llama": "LlamaForCausalLM"},
    "MiDashengLMModel": {"qwen2_5_omni_text": "Qwen2_5OmniThinkerTextModel"},
    "MiniCPMO": {"2.6": "Qwen2ForCausalLM", "4.5": "Qwen3ForCausalLM"},
    "MiniCPMV": {
        "2.0": "MiniCPMForCausalLM",
        "2.5": "LlamaForCausalLM",
        "2.6": "Qwen2ForCausalLM",
        "4.0": "LlamaForCausalLM",
        "4.5": "Qwen3ForCausalLM",
    },
    "MiniMaxVL01ForConditionalGeneration": {"minimax_text_01": "MiniMaxText01ForCausalLM"},
    "NVLM_D": {"qwen2": "Qwen2ForCausalLM"},
    "NemotronH_Nano_VL_V2": {"nemotron_h": "NemotronHForCausalLM"},
    "OpenCUAForConditionalGeneration": {"qwen2": "Qwen2ForCausalLM"},
    "Ovis": {
        "qwen2": "Qwen2ForCausalLM",
        "llama": "LlamaForCausalLM",
        "gemma2": "Gemma2ForCausalLM",
    },
    "Ovis2_5": {"qwen3": "Qwen3ForCausalLM"},
    "Phi3VForCausalLM": {"phi3_v": "Phi3ForCausalLM"},
    "RForConditionalGeneration": {"qwen3": "Qwen3ForCausalLM"},
    "SkyworkR1VChatModel": {"qwen2": "Qwen2ForCausalLM"},
    "Step3VLForConditionalGeneration": {"step3_text": "Step3TextForCausalLM"},
    "TarsierForConditionalGeneration": {
        "llama": "LlamaForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
    },
}
#: Classes whose files tell the family of their text part by `version` alone.
BY_VERSION = frozenset({"MiniCPMO", "MiniCPMV"})
#: Text parts of several classes each.
_SHARED = {
    ("llama", "LlamaForCausalLM"): (
        *("DeepseekVLHybrid", "GlmAsr", "Janus", "OmniASR", "PerceptionLM", "VideoLlava"),
        "VipLlava",
    ),
    ("nemotron_h", "NemotronHForCausalLM"): ("Nemotron3_5Transcribe",),
    ("qwen2", "Qwen2ForCausalLM"): ("AudioFlamingo3", "GotOcr2", "MusicFlamingo", "VibeVoiceAsr"),
    ("qwen3", "Qwen3ForCausalLM"): (
        *("FunAsrNano", "LightOnOcr", "MossTranscribeDiarize", "QianfanOCR", "Qwen3ASR"),
    ),
    ("qwen3_5_text", "Qwen3_5ForCausalLM"): ("MiniCPMOcr",),
    ("granite", "GraniteForCausalLM"): ("GraniteSpeech", "GraniteSpeechPlus"),
    ("qwen2_5_omni_text", "Qwen2_5OmniThinkerTextModel"): ("Qwen2_5Omni", "Qwen2_5OmniThinker"),
    ("qwen3_omni_moe_text", "Qwen3OmniMoeThinkerTextModel"): (
        *("Qwen3OmniMoe", "Qwen3OmniMoeThinker"),
    ),
}
for _text, _names in _SHARED.items():
    COMPOSITES |= {f"{name}ForConditionalGeneration": dict([_text]) for name in _names}
for _name in ("InstructBlip", "InstructBlipVideo"):
    COMPOSITES[f"{_name}ForConditionalGeneration"] = {
        "llama": "LlamaForCausalLM",
        "opt": "OPTForCausalLM",
    }
COMPOSITES["InternVLChatModel"] = {
    "internlm2": "InternLM2ForCausalLM",
    "internlm2ve": "InternLM2VEForCausalLM",
    **COMPOSITES["InternVLForConditionalGeneration"],
}
COMPOSITES["Ernie4_5_VL_MoeForConditionalGeneration"] = COMPOSITES[  # as it was called first
    "Ernie4_5_VLMoeForConditionalGeneration"
]
COMPOSITES["Qwen2_5OmniModel"] = COMPOSITES["Qwen2_5OmniForConditionalGeneration"]
#: Those whose published files have the text part's values at the top.
FLAT = frozenset(
    {
        "Dots3NoteForConditionalGeneration",
        "DotsOCRForCausalLM",
        "Glm5NextForConditionalGeneration",
        "IsaacForConditionalGeneration",
        "KeyeForConditionalGeneration",
        "KeyeVL1_5ForConditionalGeneration",
        "Phi3VForCausalLM",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
    }
)
#: How names of the text part begin, of classes that have their own word for it.
BEGINNINGS = {"MiDashengLMModel": r"^decoder\."}
