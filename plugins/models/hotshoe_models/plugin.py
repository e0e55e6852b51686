"""The plugin: which architectures this distribution offers. Imports no model and no torch."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl
from hotshoe_models.seeing import COMPOSITES

HOTSHOE_HOOK_API = 2

ARCHITECTURES = {
    "AXK1ForCausalLM": "hotshoe_models.axk1:build",
    "AXK2ForCausalLM": "hotshoe_models.axk2:build",
    "ApertusForCausalLM": "hotshoe_models.apertus:build",
    "Apertus1p5TextForCausalLM": "hotshoe_models.apertus:build_text",
    "ArceeForCausalLM": "hotshoe_models.arcee:build",
    "BailingHybridForCausalLM": "hotshoe_models.bailing_hybrid:build",
    "BambaForCausalLM": "hotshoe_models.bamba:build",
    "BioGptForCausalLM": "hotshoe_models.biogpt:build",
    "BitNetForCausalLM": "hotshoe_models.bitnet:build",
    "BloomForCausalLM": "hotshoe_models.bloom:build",
    "CodeGenForCausalLM": "hotshoe_models.gptj:build_codegen",
    "Cohere2ForCausalLM": "hotshoe_models.cohere:build_cohere2",
    "Cohere2MoeForCausalLM": "hotshoe_models.cohere:build_moe",
    "CohereForCausalLM": "hotshoe_models.cohere:build_cohere",
    "DbrxForCausalLM": "hotshoe_models.dbrx:build",
    "Dots1ForCausalLM": "hotshoe_models.glm_moe:build_dots",
    "Dots3NoteForCausalLM": "hotshoe_models.dots3_note:build",
    "Ernie4_5ForCausalLM": "hotshoe_models.ernie:build",
    "Ernie4_5_MoeForCausalLM": "hotshoe_models.ernie:build_moe",
    "Exaone4ForCausalLM": "hotshoe_models.exaone:build",
    "ExaoneMoeForCausalLM": "hotshoe_models.exaone:build_moe",
    "FalconForCausalLM": "hotshoe_models.falcon:build",
    "FalconMambaForCausalLM": "hotshoe_models.mamba:build_falcon",
    "InklingForCausalLM": "hotshoe_models.inkling:build",
    "JambaForCausalLM": "hotshoe_models.jamba:build",
    "FalconH1ForCausalLM": "hotshoe_models.falcon_h1:build",
    "DeepseekV2ForCausalLM": "hotshoe_models.ling:build_deepseek_v2",
    "DeepseekV3ForCausalLM": "hotshoe_models.deepseek:build_v3",
    "DeepseekV32ForCausalLM": "hotshoe_models.deepseek_v32:build",
    "DiffLlamaForCausalLM": "hotshoe_models.diffllama:build",
    "DeepseekV4ForCausalLM": "hotshoe_models.deepseek_v4:build",
    "FlintForCausalLM": "hotshoe_models.flint:build",
    "GPT2LMHeadModel": "hotshoe_models.gpt2:build",
    "GPTBigCodeForCausalLM": "hotshoe_models.gpt_bigcode:build",
    "GPTJForCausalLM": "hotshoe_models.gptj:build",
    "GPTNeoForCausalLM": "hotshoe_models.gpt_neo:build",
    "GPTNeoXJapaneseForCausalLM": "hotshoe_models.gpt_neox:build_japanese",
    "GPTNeoXForCausalLM": "hotshoe_models.gpt_neox:build",
    "Gemma2ForCausalLM": "hotshoe_models.gemma:build_gemma2",
    "Gemma3ForCausalLM": "hotshoe_models.gemma:build_gemma3",
    "Gemma3nForCausalLM": "hotshoe_models.gemma3n:build",
    "Gemma4ForCausalLM": "hotshoe_models.gemma4:build",
    "Gemma4UnifiedForCausalLM": "hotshoe_models.gemma4:build_unified",
    "Glm4ForCausalLM": "hotshoe_models.glm:build_glm4",
    "Glm4MoeLiteForCausalLM": "hotshoe_models.glm_lite:build",
    "Glm4MoeForCausalLM": "hotshoe_models.glm_moe:build_glm",
    "GlmMoeDsaForCausalLM": "hotshoe_models.glm_dsa:build",
    "GlmForCausalLM": "hotshoe_models.glm:build_glm",
    "GptOssForCausalLM": "hotshoe_models.gpt_oss:build",
    "GraniteForCausalLM": "hotshoe_models.granite:build",
    "GraniteMoeForCausalLM": "hotshoe_models.granite:build_moe",
    "GraniteMoeHybridForCausalLM": "hotshoe_models.granite_hybrid:build",
    "GraniteMoeSharedForCausalLM": "hotshoe_models.granite:build_moe",
    "HYV3ForCausalLM": "hotshoe_models.hunyuan3:build",
    "HYV4ForCausalLM": "hotshoe_models.hunyuan4:build",
    "HunYuanDenseV1ForCausalLM": "hotshoe_models.hunyuan:build",
    "HunYuanMoEV1ForCausalLM": "hotshoe_models.hunyuan:build_moe",
    "KimiLinearForCausalLM": "hotshoe_models.kimi_linear:build",
    "Kolibri1ForCausalLM": "hotshoe_models.kolibri:build",
    "LagunaForCausalLM": "hotshoe_models.laguna:build",
    "LaraMiniForCausalLM": "hotshoe_models.lara_mini:build",
    "Lfm2ForCausalLM": "hotshoe_models.lfm2:build",
    "Lfm2MoeForCausalLM": "hotshoe_models.lfm2:build_moe",
    "Lfm3ForCausalLM": "hotshoe_models.lfm3:build",
    "Llama4ForCausalLM": "hotshoe_models.llama4:build",
    "LlamaForCausalLM": "hotshoe_models.llama:build",
    "LongcatFlashForCausalLM": "hotshoe_models.longcat:build",
    "MambaForCausalLM": "hotshoe_models.mamba:build",
    "Mamba2ForCausalLM": "hotshoe_models.mamba2:build",
    "MiMoForCausalLM": "hotshoe_models.qwen:build_mimo",
    "MiMoV2FlashForCausalLM": "hotshoe_models.mimo_v2:build",
    "MiMoV2ForCausalLM": "hotshoe_models.mimo_v2:build",
    "MiniMaxForCausalLM": "hotshoe_models.minimax_text:build",
    "MiniMaxM1ForCausalLM": "hotshoe_models.minimax_text:build",
    "MiniMaxText01ForCausalLM": "hotshoe_models.minimax_text:build",
    "MiniMaxM2ForCausalLM": "hotshoe_models.minimax:build",
    "MiniMaxM3VLForCausalLM": "hotshoe_models.minimax_m3:build",
    "Ministral3ForCausalLM": "hotshoe_models.ministral:build",
    "MinistralForCausalLM": "hotshoe_models.mistral:build",
    "MllamaForCausalLM": "hotshoe_models.mllama:build",
    "Mistral4ForCausalLM": "hotshoe_models.mistral4:build",
    "MistralForCausalLM": "hotshoe_models.mistral:build",
    "MixtralForCausalLM": "hotshoe_models.mixtral:build",
    "MPTForCausalLM": "hotshoe_models.mpt:build",
    "ModernBertDecoderForCausalLM": "hotshoe_models.modernbert_decoder:build",
    "MptForCausalLM": "hotshoe_models.mpt:build",
    "NanoChatForCausalLM": "hotshoe_models.nanochat:build",
    "NemotronForCausalLM": "hotshoe_models.nemotron:build",
    "NemotronHForCausalLM": "hotshoe_models.nemotron_h:build",
    "OPTForCausalLM": "hotshoe_models.opt:build",
    "Olmo2ForCausalLM": "hotshoe_models.olmo:build_olmo2",
    "Olmo3ForCausalLM": "hotshoe_models.olmo:build_olmo3",
    "OlmoHybridForCausalLM": "hotshoe_models.olmo_hybrid:build",
    "OlmoForCausalLM": "hotshoe_models.olmo:build_olmo",
    "OlmoeForCausalLM": "hotshoe_models.olmoe:build",
    "PersimmonForCausalLM": "hotshoe_models.persimmon:build",
    "PhiForCausalLM": "hotshoe_models.phi:build",
    "Phi3ForCausalLM": "hotshoe_models.phi3:build",
    "Phi4MMForCausalLM": "hotshoe_models.phi3:build_seeing",
    "Phi4MultimodalForCausalLM": "hotshoe_models.phi3:build_seeing",
    "PhiMoEForCausalLM": "hotshoe_models.phi_moe:build",
    "PhimoeForCausalLM": "hotshoe_models.phi_moe:build",
    "Qwen2ForCausalLM": "hotshoe_models.qwen:build_qwen2",
    "Qwen2MoeForCausalLM": "hotshoe_models.qwen_moe:build_qwen2",
    "Qwen3ForCausalLM": "hotshoe_models.qwen:build_qwen3",
    "Qwen3MoeForCausalLM": "hotshoe_models.qwen_moe:build_qwen3",
    "Qwen3NextForCausalLM": "hotshoe_models.qwen_next:build",
    "Qwen4ExpForCausalLM": "hotshoe_models.qwen4_exp:build",
    "Qwen3_5ForCausalLM": "hotshoe_models.qwen35:build",
    "Qwen3_5MoeForCausalLM": "hotshoe_models.qwen35:build_moe",
    "RecurrentGemmaForCausalLM": "hotshoe_models.recurrent_gemma:build",
    "SeedOssForCausalLM": "hotshoe_models.seed_oss:build",
    "SmolLM3ForCausalLM": "hotshoe_models.smollm3:build",
    "Step3p5ForCausalLM": "hotshoe_models.step:build",
    "StableLmForCausalLM": "hotshoe_models.stablelm:build",
    "Starcoder2ForCausalLM": "hotshoe_models.starcoder2:build",
    "XGLMForCausalLM": "hotshoe_models.xglm:build",
    "xLSTMForCausalLM": "hotshoe_models.xlstm:build",
    "YoutuForCausalLM": "hotshoe_models.youtu:build",
    "Zamba2ForCausalLM": "hotshoe_models.zamba2:build",
    "ZayaForCausalLM": "hotshoe_models.zaya:build",
    "ZambaForCausalLM": "hotshoe_models.zamba:build",
    "AfmoeForCausalLM": "hotshoe_models.afmoe:build",
    "CwmForCausalLM": "hotshoe_models.llamas:build_cwm",
    "FlexOlmoForCausalLM": "hotshoe_models.olmoe:build_flex",
    "GemmaForCausalLM": "hotshoe_models.gemma:build_gemma",
    "VaultGemmaForCausalLM": "hotshoe_models.gemma:build_vault",
    "GraniteSWAForCausalLM": "hotshoe_models.granite_swa:build",
    "GraniteMoeSWAForCausalLM": "hotshoe_models.granite_swa:build_moe",
    "HeliumForCausalLM": "hotshoe_models.llamas:build_helium",
    "HyperCLOVAXForCausalLM": "hotshoe_models.hyperclovax:build",
    "IQuestCoderForCausalLM": "hotshoe_models.llamas:build_iquest",
    "InternLM3ForCausalLM": "hotshoe_models.llamas:build_internlm3",
    "Jais2ForCausalLM": "hotshoe_models.llamas:build_jais2",
    "MellumForCausalLM": "hotshoe_models.mellum:build",
    "MiniCPM3ForCausalLM": "hotshoe_models.minicpm3:build",
    "SarvamMLAForCausalLM": "hotshoe_models.sarvam:build_mla",
    "SarvamMoEForCausalLM": "hotshoe_models.sarvam:build",
    "SolarOpenForCausalLM": "hotshoe_models.glm_moe:build_solar",
    # Published with code of their own, and in no release of transformers.
    "AquilaForCausalLM": "hotshoe_models.llama:build",
    "AquilaModel": "hotshoe_models.own_code:build_aquila",
    "ArcticForCausalLM": "hotshoe_models.arctic:build",
    "BaiChuanForCausalLM": "hotshoe_models.own_code:build_baichuan",
    "BaichuanForCausalLM": "hotshoe_models.own_code:build_baichuan",
    "BailingMoeForCausalLM": "hotshoe_models.ling:build",
    "BailingMoeV2ForCausalLM": "hotshoe_models.ling:build_v2",
    "ChatGLMForConditionalGeneration": "hotshoe_models.published:build_chatglm",
    "ChatGLMModel": "hotshoe_models.published:build_chatglm",
    "DeciLMForCausalLM": "hotshoe_models.decilm:build",
    "DeepseekForCausalLM": "hotshoe_models.ling:build_deepseek",
    "ExaoneForCausalLM": "hotshoe_models.published:build_exaone",
    "GPTRefactForCausalLM": "hotshoe_models.refact:build",
    "GroveMoeForCausalLM": "hotshoe_models.grovemoe:build",
    "GLM4VForCausalLM": "hotshoe_models.published:build_chatglm",
    "Grok1ModelForCausalLM": "hotshoe_models.grok:build",
    "InternLM2ForCausalLM": "hotshoe_models.published:build_internlm2",
    "InternLM2VEForCausalLM": "hotshoe_models.published:build_internlm2",
    "InternLMForCausalLM": "hotshoe_models.published:build_internlm",
    "JAISLMHeadModel": "hotshoe_models.own_code:build_jais",
    "LLaMAForCausalLM": "hotshoe_models.llama:build",
    "MiniCPMForCausalLM": "hotshoe_models.published:build_minicpm",
    "OpenELMForCausalLM": "hotshoe_models.openelm:build",
    "OrionForCausalLM": "hotshoe_models.published:build_orion",
    "OuroForCausalLM": "hotshoe_models.ouro:build",
    "PLMForCausalLM": "hotshoe_models.plm:build",
    "PanguEmbeddedForCausalLM": "hotshoe_models.published:build_internlm",
    "PanguProMoEForCausalLM": "hotshoe_models.pangu:build_pro",
    "PanguUltraMoEForCausalLM": "hotshoe_models.pangu:build_ultra",
    "Plamo2ForCausalLM": "hotshoe_models.plamo:build_plamo2",
    "Plamo3ForCausalLM": "hotshoe_models.plamo:build",
    "PlamoForCausalLM": "hotshoe_models.plamo1:build",
    "QWenLMHeadModel": "hotshoe_models.published:build_qwen",
    "QwenVLForConditionalGeneration": "hotshoe_models.published:build_qwen",
    "RWForCausalLM": "hotshoe_models.own_code:build_falcon",
    "SmallThinkerForCausalLM": "hotshoe_models.smallthinker:build",
    "SolarForCausalLM": "hotshoe_models.solar:build",
    "StableLMEpochForCausalLM": "hotshoe_models.own_code:build_stablelm",
    "Step3TextForCausalLM": "hotshoe_models.step3:build",
    "TeleChat2ForCausalLM": "hotshoe_models.own_code:build_telechat",
    "TeleChatForCausalLM": "hotshoe_models.own_code:build_telechat",
    "TeleFLMForCausalLM": "hotshoe_models.own_code:build_teleflm",
    "XverseForCausalLM": "hotshoe_models.llama:build",
    "YiForCausalLM": "hotshoe_models.llama:build",
    # Without an output matrix, as models that make embeddings are published.
    "Glm4vMoeTextModel": "hotshoe_models.glm_vl:build_moe",
    "Glm4vTextModel": "hotshoe_models.glm_vl:build",
    "Glm5NextTextModel": "hotshoe_models.glm5_next:build",
    "Gemma2Model": "hotshoe_models.gemma:build_gemma2",
    "LlamaModel": "hotshoe_models.llama:build",
    "Cosmos3EdgeTextModel": "hotshoe_models.arcee:build_edge",
    "Ernie4_5_VLMoeTextModel": "hotshoe_models.ernie:build_seeing",
    "HYV4VLTextModel": "hotshoe_models.hunyuan4:build_seeing",
    "MistralLarge4TextModel": "hotshoe_models.mistral_large4:build",
    "MistralModel": "hotshoe_models.mistral:build",
    "Molmo2TextModel": "hotshoe_models.molmo2:build",
    "MuseGlimmerTextModel": "hotshoe_models.muse_glimmer:build",
    "MuseSparkTextModel": "hotshoe_models.muse_spark:build",
    "Qwen2Model": "hotshoe_models.qwen:build_qwen2",
    "Qwen2_5OmniThinkerTextModel": "hotshoe_models.qwen_vl:build_qwen2_omni",
    "Qwen3OmniMoeThinkerTextModel": "hotshoe_models.qwen_vl:build_qwen3_omni",
    "Qwen2VLTextModel": "hotshoe_models.qwen_vl:build_qwen2",
    "Qwen2_5_VLTextModel": "hotshoe_models.qwen_vl:build_qwen2",
    "Qwen3Model": "hotshoe_models.qwen:build_qwen3",
    "Qwen3VLMoeTextModel": "hotshoe_models.qwen_vl:build_qwen3_moe",
    "Qwen3VLTextModel": "hotshoe_models.qwen_vl:build_qwen3",
}

ARCHITECTURES |= dict.fromkeys(COMPOSITES, "hotshoe_models.composite:build")

#: Classes with a head for classes of texts, and those whose decoder they have.
CLASSIFIERS = {
    f"{family}ForSequenceClassification": f"{family.removesuffix('Text')}ForCausalLM"
    for family in (
        *("Arcee", "AXK1", "AXK2", "BioGpt", "Bloom", "DeepseekV2", "DeepseekV3", "DiffLlama"),
        *("Exaone4", "Falcon", "Gemma", "Gemma2", "Gemma3Text", "Glm", "Glm4", "GPTBigCode"),
        *("GPTJ", "GPTNeo", "GPTNeoX", "GptOss", "Helium", "HunYuanDenseV1", "HunYuanMoEV1"),
        *("Jamba", "Llama", "MiniCPM3", "MiniMax", "Ministral", "Ministral3", "Mistral"),
        *("Mistral4", "Mixtral", "Mpt", "Nemotron", "Olmo", "Olmo2", "Olmo3", "OPT"),
        *("Persimmon", "Phi", "Phi3", "Phimoe", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe"),
        *(
            "Qwen3Next",
            "Qwen3_5Text",
            "SeedOss",
            "SmolLM3",
            "StableLm",
            "Starcoder2",
            "Zamba",
            "Zamba2",
        ),
    )
} | {
    "GPT2ForSequenceClassification": "GPT2LMHeadModel",
    "InternLM2ForRewardModel": "InternLM2ForCausalLM",
    "Qwen2ForRewardModel": "Qwen2ForCausalLM",
}
#: Those with a head for classes of tokens; of a process reward model, of those that end steps.
DECODER_TOKEN_CLASSIFIERS = {
    f"{family}ForTokenClassification": f"{family}ForCausalLM"
    for family in (
        *("Apertus", "Arcee", "AXK1", "AXK2", "BioGpt", "Bloom", "DeepseekV3", "DiffLlama"),
        *("Exaone4", "Falcon", "Gemma", "Gemma2", "Glm", "Glm4", "GPTBigCode", "GPTNeo"),
        *("GPTNeoX", "GptOss", "Helium", "Llama", "MiniMax", "Ministral", "Ministral3"),
        *("Mistral", "Mistral4", "Mixtral", "Mpt", "Nemotron", "Persimmon", "Phi", "Phi3"),
        *("Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "Qwen3Next", "SeedOss", "SmolLM3"),
        *("StableLm", "Starcoder2"),
    )
} | {
    "GPT2ForTokenClassification": "GPT2LMHeadModel",
    "Qwen2ForProcessRewardModel": "Qwen2ForCausalLM",
}
CLASSIFIERS |= DECODER_TOKEN_CLASSIFIERS
ARCHITECTURES |= dict.fromkeys(CLASSIFIERS, "hotshoe_models.classify:build")

#: Models whose tokens see later ones too: what builds them, and how many positions no token has.
_ENCODERS = {
    "Bert": ("bert:build", 0),
    "Camembert": ("bert:build_roberta", 2),
    "Data2VecText": ("bert:build_roberta", 2),
    "DebertaV2": ("deberta:build", 0),
    "DistilBert": ("distilbert:build", 0),
    "Electra": ("bert:build_electra", 0),
    "Ernie": ("bert:build_ernie", 0),
    "Gte": ("gte:build", 0),
    "JinaBert": ("jina_bert:build", 0),
    "JinaEmbeddingsV3": ("gte:build_jina", 0),
    "MPNet": ("mpnet:build", 2),
    "ModernBert": ("modernbert:build", 0),
    "New": ("gte:build_new", 0),
    "NomicBert": ("nomic_bert:build", 0),
    "Roberta": ("bert:build_roberta", 2),
    "XLMRoberta": ("bert:build_roberta", 2),
    "XLMRobertaXL": ("bert:build_xlm_roberta_xl", 2),
}
#: A head for words is not read. One for classes is built behind the encoder.
ENCODER_CLASSIFIERS = {f"{name}ForSequenceClassification": f"{name}Model" for name in _ENCODERS}
TOKEN_CLASSIFIERS = {f"{name}ForTokenClassification": f"{name}Model" for name in _ENCODERS}
#: What builds an encoder; one with a head for words is built behind it.
MASKED = {
    f"{name}{use}": f"hotshoe_models.{builder}"
    for name, (builder, _) in _ENCODERS.items()
    for use in ("Model", "ForMaskedLM")
}
ARCHITECTURES |= MASKED
ARCHITECTURES |= {
    name: "hotshoe_models.splade:build" for name in MASKED if name.endswith("ForMaskedLM")
}
ARCHITECTURES |= dict.fromkeys(ENCODER_CLASSIFIERS, "hotshoe_models.encoder_heads:build")
ARCHITECTURES |= dict.fromkeys(TOKEN_CLASSIFIERS, "hotshoe_models.encoder_heads:build_tokens")
_OTHERS = {
    "BertSpladeSparseEmbeddingModel": "hotshoe_models.splade:build",
    "EuroBertForMaskedLM": "hotshoe_models.eurobert:build",
    "EuroBertModel": "hotshoe_models.eurobert:build",
    "Gemma3TextModel": "hotshoe_models.gemma_encoder:build",
    "HF_ColBERT": "hotshoe_models.bert:build_colbert",
    "LlamaBidirectionalForSequenceClassification": (
        "hotshoe_models.own_code:build_bidirectional_ranker"
    ),
    "LlamaBidirectionalModel": "hotshoe_models.own_code:build_bidirectional",
    "MT5EncoderModel": "hotshoe_models.t5:build_mt5",
    "NeoBERT": "hotshoe_models.neobert:build",
    "NeoBERTLMHead": "hotshoe_models.neobert:build",
    "T5EncoderModel": "hotshoe_models.t5:build",
}
ARCHITECTURES |= _OTHERS
ENCODERS = {
    f"{name}{use}": positions
    for name, (_, positions) in _ENCODERS.items()
    for use in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
} | dict.fromkeys(_OTHERS, 0)

#: Positions of models whose published files may leave them out.
LENGTHS = {
    f"{name}For{use}": length
    for name, length in {
        "Gemma3": 131072,
        "Gemma3n": 32768,
        "Gemma4": 131072,
        "Gemma4Unified": 262144,
        "Llama4": 131072,
    }.items()
    for use in ("CausalLM", "ConditionalGeneration")
}
LENGTHS |= dict.fromkeys(("MT5EncoderModel", "T5EncoderModel"), 512)
LENGTHS |= dict.fromkeys(("RecurrentGemmaForCausalLM", "xLSTMForCausalLM"), 8192)
LENGTHS |= dict.fromkeys(("NeoBERT", "NeoBERTLMHead"), 4096)

#: Kinds of files that hold or describe a whole model, by the ending of their names.
FILES = {
    "gguf": "hotshoe_models.gguf.model:FORMAT",
    "json": "hotshoe_models.consolidated:FORMAT",
}

#: Heads in a directory of their own, by the method of speculation.
HEADS = {
    "eagle": "hotshoe_models.eagle:build_eagle",
    "eagle3": "hotshoe_models.eagle:build_eagle3",
    "gemma4_assistant": "hotshoe_models.gemma4_assistant:build",
    "medusa": "hotshoe_models.medusa:build",
    "mtp": "hotshoe_models.mtp_head:build",
}

#: What builds architectures that nobody describes.
IMPLEMENTATIONS = {"transformers": "hotshoe_models.hf:build"}


@hookimpl
def hotshoe_models() -> Mapping[str, str]:
    """Name the architectures as `architectures` in config.json spells them."""
    return ARCHITECTURES


@hookimpl
def hotshoe_model_lengths() -> Mapping[str, int]:
    """Say how many positions there are where config.json does not."""
    return LENGTHS


@hookimpl
def hotshoe_encoders() -> Mapping[str, int]:
    """Name the encoders."""
    return ENCODERS


@hookimpl
def hotshoe_model_files() -> Mapping[str, str]:
    """Name the kinds of files."""
    return FILES


@hookimpl
def hotshoe_model_impls() -> Mapping[str, str]:
    """Name what builds architectures that nobody describes."""
    return IMPLEMENTATIONS


@hookimpl
def hotshoe_heads() -> Mapping[str, str]:
    """Name the methods of speculation whose heads are known."""
    return HEADS
