"""The plugin offers builders that exist, at no cost; docs and defaults keep up with the code."""

import dataclasses
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from tests.plugins.models.conftest import describe

from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import EntryPoint
from hotshoe.slots.base import resolve_lazy
from hotshoe_models import (
    afmoe,
    apertus,
    arcee,
    axk1,
    axk2,
    biogpt,
    bitnet,
    bloom,
    cohere,
    dbrx,
    deepseek,
    deepseek_v4,
    deepseek_v32,
    diffllama,
    dots3_note,
    ernie,
    exaone,
    flint,
    gemma,
    gemma3n,
    gemma4,
    glm,
    glm5_next,
    glm_dsa,
    glm_lite,
    glm_moe,
    glm_vl,
    gpt_bigcode,
    gpt_neo,
    gpt_neox,
    gpt_oss,
    gptj,
    granite,
    granite_swa,
    hunyuan,
    hunyuan3,
    hunyuan4,
    hyperclovax,
    inkling,
    jamba,
    kolibri,
    laguna,
    lara_mini,
    lfm2,
    lfm3,
    llama,
    llama4,
    llamas,
    longcat,
    mamba,
    mellum,
    mimo_v2,
    minicpm3,
    minimax,
    minimax_m3,
    minimax_text,
    ministral,
    mistral,
    mistral4,
    mistral_large4,
    mixtral,
    mllama,
    modernbert_decoder,
    molmo2,
    mpt,
    muse_glimmer,
    muse_spark,
    nanochat,
    olmo,
    olmo_hybrid,
    olmoe,
    persimmon,
    phi3,
    phi_moe,
    plugin,
    qwen,
    qwen4_exp,
    qwen_moe,
    qwen_next,
    qwen_vl,
    recurrent_gemma,
    sarvam,
    smollm3,
    step,
    xglm,
    xlstm,
    youtu,
    zamba,
    zamba2,
    zaya,
)

DEFAULTS = {
    "AXK1Config": axk1.DEFAULTS,
    "BloomConfig": bloom.DEFAULTS,
    "MptConfig": mpt.DEFAULTS,
    "FlintConfig": flint.DEFAULTS,
    "LagunaConfig": laguna.DEFAULTS,
    "Lfm3Config": lfm3.DEFAULTS,
    "NanoChatConfig": nanochat.DEFAULTS,
    "PersimmonConfig": persimmon.DEFAULTS,
    "Kolibri1Config": kolibri.DEFAULTS,
    "LlamaConfig": llama.DEFAULTS,
    "LongcatFlashConfig": longcat.DEFAULTS,
    "MistralConfig": mistral.DEFAULTS,
    "Qwen2Config": qwen.QWEN2_DEFAULTS,
    "Qwen3Config": qwen.QWEN3_DEFAULTS,
    "Gemma2Config": gemma.GEMMA2_DEFAULTS,
    "Gemma3TextConfig": gemma.GEMMA3_DEFAULTS,
    "Gemma3nTextConfig": gemma3n.DEFAULTS,
    "Gemma4TextConfig": gemma4.DEFAULTS,
    "Gemma4UnifiedTextConfig": gemma4.UNIFIED_DEFAULTS,
    "Phi3Config": phi3.DEFAULTS,
    "PhimoeConfig": phi_moe.DEFAULTS,
    "GraniteConfig": granite.DEFAULTS,
    "ApertusConfig": apertus.DEFAULTS,
    "SmolLM3Config": smollm3.DEFAULTS,
    "OlmoConfig": olmo.OLMO_DEFAULTS,
    "Olmo2Config": olmo.DEFAULTS,
    "Olmo3Config": olmo.OLMO3_DEFAULTS,
    "OlmoHybridConfig": olmo_hybrid.DEFAULTS,
    "GlmConfig": glm.DEFAULTS,
    "Glm4Config": glm.DEFAULTS,
    "MixtralConfig": mixtral.DEFAULTS,
    "Qwen2MoeConfig": qwen_moe.QWEN2_MOE_DEFAULTS,
    "Qwen3MoeConfig": qwen_moe.QWEN3_MOE_DEFAULTS,
    "Qwen3NextConfig": qwen_next.DEFAULTS,
    "GPTBigCodeConfig": gpt_bigcode.DEFAULTS,
    "BioGptConfig": biogpt.DEFAULTS,
    "DiffLlamaConfig": diffllama.DEFAULTS,
    "XGLMConfig": xglm.DEFAULTS,
    "CodeGenConfig": gptj.DEFAULTS,
    "GPTNeoXJapaneseConfig": gpt_neox.JAPANESE_DEFAULTS,
    "GPTNeoConfig": gpt_neo.DEFAULTS,
    "GPTJConfig": gptj.DEFAULTS,
    "GptOssConfig": gpt_oss.DEFAULTS,
    "Glm4MoeConfig": glm_moe.GLM_DEFAULTS,
    "Dots1Config": glm_moe.DOTS_DEFAULTS,
    "GraniteMoeSharedConfig": granite.MOE_DEFAULTS,
    "Ernie4_5Config": ernie.DEFAULTS,
    "Ernie4_5_MoeConfig": ernie.MOE_DEFAULTS,
    "Ernie4_5_VLMoeTextConfig": ernie.SEEING_DEFAULTS,
    "Cosmos3EdgeTextConfig": arcee.EDGE_DEFAULTS,
    "OlmoeConfig": olmoe.DEFAULTS,
    "MiniMaxM2Config": minimax.DEFAULTS,
    "MiniMaxConfig": minimax_text.DEFAULTS,
    "MiniMaxM3VLTextConfig": minimax_m3.DEFAULTS,
    "SarvamMoEConfig": sarvam.DEFAULTS,
    "SarvamMLAConfig": sarvam.MLA_DEFAULTS,
    "MuseGlimmerTextConfig": muse_glimmer.DEFAULTS,
    "MuseSparkTextConfig": muse_spark.DEFAULTS,
    "Step3p7TextConfig": {**step.DEFAULTS, "num_local_experts": 128},  # another key's name
    "DbrxConfig": dbrx.DEFAULTS,
    "Molmo2TextConfig": molmo2.DEFAULTS,
    "ModernBertDecoderConfig": modernbert_decoder.DEFAULTS,
    "BitNetConfig": bitnet.DEFAULTS,
    "Zamba2Config": zamba2.DEFAULTS,
    "ZayaConfig": zaya.DEFAULTS,
    "ZambaConfig": zamba.DEFAULTS,
    "MllamaTextConfig": mllama.DEFAULTS,
    "Apertus1p5TextConfig": apertus.TEXT_DEFAULTS,
    "Phi4MultimodalConfig": phi3.SEEING_DEFAULTS,
    "AXK2Config": axk2.DEFAULTS,
    "Dots3NoteTextConfig": dots3_note.DEFAULTS,
    "DeepseekV2Config": deepseek.V2_DEFAULTS,
    "DeepseekV3Config": deepseek.V3_DEFAULTS,
    "Glm4MoeLiteConfig": glm_lite.DEFAULTS,
    "DeepseekV32Config": deepseek_v32.DEFAULTS,
    "DeepseekV4Config": deepseek_v4.DEFAULTS,
    "Glm5NextTextConfig": glm5_next.DEFAULTS,
    "InklingTextConfig": inkling.DEFAULTS,
    "Qwen4ExpTextConfig": qwen4_exp.DEFAULTS,
    "GlmMoeDsaConfig": glm_dsa.DEFAULTS,
    "YoutuConfig": youtu.DEFAULTS,
    "HYV3Config": hunyuan3.DEFAULTS,
    "HYV4Config": hunyuan4.DEFAULTS,
    "HYV4VLTextConfig": hunyuan4.SEEING_DEFAULTS,
    "ExaoneMoeConfig": exaone.MOE_DEFAULTS,
    "Cohere2MoeConfig": cohere.MOE_DEFAULTS,
    "Ministral3Config": ministral.DEFAULTS,
    "Mistral4Config": mistral4.DEFAULTS,
    "MistralLarge4TextConfig": mistral_large4.DEFAULTS,
    "Llama4TextConfig": llama4.DEFAULTS,
    "HunYuanDenseV1Config": hunyuan.DEFAULTS,
    "MiMoV2FlashConfig": mimo_v2.DEFAULTS,
    "HunYuanMoEV1Config": hunyuan.MOE_DEFAULTS,
    "AfmoeConfig": afmoe.DEFAULTS,
    "Glm4vMoeTextConfig": glm_vl.MOE_DEFAULTS,
    "Glm4vTextConfig": glm_vl.DEFAULTS,
    "FalconMambaConfig": mamba.FALCON_DEFAULTS,
    "MambaConfig": mamba.DEFAULTS,
    "JambaConfig": jamba.DEFAULTS,
    "LaraMiniConfig": lara_mini.DEFAULTS,
    "Lfm2Config": lfm2.DEFAULTS,
    "Lfm2MoeConfig": lfm2.MOE_DEFAULTS,
    "xLSTMConfig": xlstm.DEFAULTS,
    "RecurrentGemmaConfig": recurrent_gemma.DEFAULTS,
    "Qwen2VLTextConfig": qwen_vl.QWEN2_VL_DEFAULTS,
    "Qwen2_5OmniTextConfig": qwen_vl.QWEN2_OMNI_DEFAULTS,
    "Qwen2_5_VLTextConfig": qwen_vl.QWEN2_VL_DEFAULTS,
    "Qwen3OmniMoeTextConfig": qwen_vl.QWEN3_OMNI_DEFAULTS,
    "Qwen3VLMoeTextConfig": qwen_vl.QWEN3_VL_MOE_DEFAULTS,
    "Qwen3VLTextConfig": qwen_vl.QWEN3_VL_DEFAULTS,
    "CwmConfig": llamas.CWM_DEFAULTS,
    "FlexOlmoConfig": olmoe.FLEX_DEFAULTS,
    "GemmaConfig": gemma.GEMMA_DEFAULTS,
    "GraniteMoeSWAConfig": granite_swa.MOE_DEFAULTS,
    "GraniteSWAConfig": granite_swa.DEFAULTS,
    "HeliumConfig": llamas.HELIUM_DEFAULTS,
    "HyperCLOVAXConfig": hyperclovax.DEFAULTS,
    "IQuestCoderConfig": llamas.IQUEST_DEFAULTS,
    "InternLM3Config": llamas.INTERNLM3_DEFAULTS,
    "Jais2Config": llamas.JAIS2_DEFAULTS,
    "MellumConfig": mellum.DEFAULTS,
    "MiniCPM3Config": minicpm3.DEFAULTS,
    "SolarOpenConfig": glm_moe.SOLAR_DEFAULTS,
    "VaultGemmaConfig": gemma.VAULT_DEFAULTS,
}
#: What files have besides, by name; `transformers` reads it in another place, or overlooks it.
BESIDES = {
    "head_dim",
    "max_window_layers",
    "mlp_bias",
    "layer_types",
    "norm_topk_prob",
    "num_nextn_predict_layers",
    "partial_rotary_factor",
    "tie_word_embeddings",
}
#: Fields of training and of the class's own account of itself.
UNREAD = {"output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "moe_norm_min"}
UNREAD |= {"num_mtp_layers", "embedding_initializer_range", "input_jitter_noise"}
UNREAD |= {"mtp_layer_types", "mtp_mlp_layer_types", "residual_in_fp32", "use_mamba_kernels"}
UNREAD |= {"use_mambapy", "use_associative_scan", "rescale_prenorm_residual"}
UNREAD |= {f"time_step_{what}" for what in ("floor", "init_scheme", "min", "max", "scale")}
UNREAD |= {"attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"}  # as all do here
UNREAD |= {f"linear_{what}" for what in ("a_log_min", "a_log_max", "dt_min", "dt_max")}
UNREAD |= {"linear_dt_init_floor"}
UNREAD |= {"n_ctx"}  # CodeGen's n_positions once more
UNREAD |= {
    "slow_but_exact",
    "init_device",
}  # how ranks add up in training, and where weights are made
#: Of a choice among blocks, all of which are read here.
UNREAD |= {"index_n_heads", "index_head_dim", "index_local_blocks"}
UNREAD |= {"vision_config", "audio_config"}  # of Phi-4 multimodal
UNREAD |= {"chunk_size", "use_mem_eff_path", "num_logits_to_keep", "use_conv_bias"}  # of Zamba
UNREAD |= {"initializer_cutoff_factor"}
UNREAD |= {"init_std", "lambda_std_dev", "w_init_variance_scale"}  # of random weights
UNREAD |= {"block_size"}  # tokens of MiniMax's chunks, which change no result
UNREAD |= {"enable_moe_fp32_combine"}  # sums of two are rounded once anyway
#: How xLSTM's sums are cut, and rounded where not in float32; a number that its norms make up for.
UNREAD |= {f"{kind}_kernel" for kind in ("chunkwise", "sequence", "step")}
UNREAD |= {"mode", "return_last_states", "autocast_kernel_dtype", "inference_state_dtype", "eps"}
UNREAD |= {"norm_reduction_force_float32", "max_inference_chunksize"}
#: Fields that say nothing about inference, or that core reads (token ids).
IRRELEVANT = re.compile(
    r"_token_id$|dropout(_prob)?$|^layerdrop$|_pdrop$|^initializer_range$|^use_cache$|^pretraining"
)
#: Most lines of a module that describes architectures; for each of them where its defaults are
#: another one's, changed.
MOST_LINES, MOST_LINES_DERIVED = 300, 60
DOCS = Path(__file__).parents[3] / "docs/reference/models.md"


def test_loads_as_a_plugin_and_every_builder_exists():
    manager = PluginManager([EntryPoint("models", "hotshoe-models", "0", lambda: plugin)])
    assert manager.records[0].error is None
    offered = manager.mapping("hotshoe_models")
    assert offered == plugin.ARCHITECTURES
    assert all(callable(resolve_lazy(target)) for target in offered.values())


def test_naming_the_architectures_imports_no_torch():
    code = (
        "import sys, hotshoe_models.plugin as p; p.hotshoe_models(); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


# Distances have no last one: an encoder's length is that of its published files alone.
#: Those of classes that say no length: what the authors trained with.
TRAINED = {"RecurrentGemmaForCausalLM", "xLSTMForCausalLM"}


@pytest.mark.parametrize(
    "name", [one for one in plugin.LENGTHS if one not in plugin.ENCODERS.keys() | TRAINED]
)
def test_lengths_are_those_of_the_configuration_class(name):
    text = DEFAULTS.get(f"{name.partition('For')[0]}TextConfig", {})
    assert plugin.LENGTHS[name] == text["max_position_embeddings"]
    assert name in plugin.ARCHITECTURES


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_the_configuration_class(name):
    config_class = getattr(transformers, name)
    own = {
        f.name: f.default
        for f in dataclasses.fields(config_class)
        if f.name in config_class.__annotations__ and not IRRELEVANT.search(f.name)
    }
    ours = {k: v for k, v in DEFAULTS[name].items() if k not in UNREAD}
    assert {k: v for k, v in ours.items() if k in own or k not in BESIDES} == {
        k: v for k, v in own.items() if k not in UNREAD
    }
    thetas = {
        "Llama4TextConfig": llama4.DEFAULT_THETA,
        "HYV3Config": hunyuan3.DEFAULT_THETA,
        **dict.fromkeys(("Qwen2VLTextConfig", "Qwen2_5_VLTextConfig"), qwen_vl.QWEN2_VL_THETA),
        **dict.fromkeys(("Qwen3VLTextConfig", "Qwen3VLMoeTextConfig"), qwen_vl.QWEN3_VL_THETA),
        **dict.fromkeys(("Qwen2_5OmniTextConfig", "Qwen3OmniMoeTextConfig"), qwen_vl.OMNI_THETA),
        "ApertusConfig": apertus.THETA,
        "CwmConfig": llamas.CWM_THETA,
        **dict.fromkeys(("Lfm2Config", "Lfm2MoeConfig"), lfm2.DEFAULT_THETA),
        "Lfm3Config": lfm3.THETA,
        "FlexOlmoConfig": olmoe.FLEX_THETA,
        "HeliumConfig": llamas.HELIUM_THETA,
        "SolarOpenConfig": glm_moe.SOLAR_THETA,
        "SmolLM3Config": smollm3.DEFAULT_THETA,
        "MixtralConfig": mixtral.DEFAULT_THETA,
        "PhimoeConfig": mixtral.DEFAULT_THETA,
        "Olmo3Config": olmo.OLMO3_THETA,
        "GptOssConfig": gpt_oss.DEFAULT_THETA,
        "MiniMaxM2Config": minimax.DEFAULT_THETA,
        "MiniMaxConfig": minimax_text.DEFAULT_THETA,
        "BitNetConfig": bitnet.DEFAULT_THETA,
        "MllamaTextConfig": mllama.DEFAULT_THETA,
        "Apertus1p5TextConfig": apertus.THETA,
        "Dots3NoteTextConfig": dots3_note.THETAS[dots3_note.INDEXED],
        "MiniMaxM3VLTextConfig": minimax_m3.DEFAULT_THETA,
        "SarvamMoEConfig": sarvam.DEFAULT_THETA,
        "Step3p7TextConfig": step.DEFAULT_THETA,
        "LongcatFlashConfig": longcat.DEFAULT_THETA,
        "Ernie4_5Config": ernie.DEFAULT_THETA,
        "Ernie4_5_MoeConfig": ernie.DEFAULT_THETA,
        "Ernie4_5_VLMoeTextConfig": ernie.DEFAULT_THETA,
        "Cosmos3EdgeTextConfig": arcee.EDGE_THETA,
    }
    if name in ("Gemma3TextConfig", "Gemma3nTextConfig"):
        expected = {"global": gemma.GLOBAL_THETA, "local": gemma.LOCAL_THETA}
    elif name == "ModernBertDecoderConfig":
        bases = modernbert_decoder.BASES.values()
        expected = {key.partition("_")[0]: base for key, base in bases}
    else:
        expected = thetas.get(name, 10_000.0)
    assert config_class.default_theta == expected


def test_every_architecture_is_documented():
    text = DOCS.read_text().partition("## Any other causal architecture")[0]
    documented = set(re.findall(r"`(\w+(?:ForCausalLM|ForConditionalGeneration|Model))`", text))
    others = "MaskedLM|SequenceClassification|TokenClassification"
    documented |= set(re.findall(rf"`(\w+For(?:{others}))`", text))
    documented |= set(re.findall(r"`(\w+)`", text)) & set(plugin.ARCHITECTURES)  # other endings
    assert documented == set(plugin.ARCHITECTURES)


def test_every_architecture_is_compared_with_transformers(variants):
    """Of those that write text, and that the library has; see `test_end_to_end` for what runs,
    `test_classify` for those with classes, and `test_encoder` for encoders."""
    compared = {describe(variant)[0] for variant in variants.values() if variant.impl == "auto"}
    offered = plugin.ARCHITECTURES.keys() - plugin.COMPOSITES.keys() - plugin.CLASSIFIERS.keys()
    offered -= plugin.ENCODERS.keys()
    there = {name for name in offered if not name.endswith("Model") and hasattr(transformers, name)}
    assert there - compared == set()


def test_architectures_are_small():
    built: dict[str, int] = {}
    for target in set(plugin.ARCHITECTURES.values()):
        module = target.partition(":")[0]
        built[module] = built.get(module, 0) + 1
    derived = 0
    for module, count in built.items():
        text = Path(importlib.import_module(module).__file__).read_text()
        lines = text.count("\n")
        assert lines <= MOST_LINES, module
        if re.search(r"^from hotshoe_models\.\w+ import .*DEFAULTS", text, re.MULTILINE):
            derived += 1
            assert lines <= MOST_LINES_DERIVED * count, module
    assert derived > 5
