"""Models that see: either layout of names, parts that are not served, bad values named."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.models.composites import text_values
from hotshoe_models import hf
from hotshoe_models.composite import build
from hotshoe_models.plugin import ARCHITECTURES
from hotshoe_models.seeing import COMPOSITES

#: Beginnings of names, in the two layouts.
OLDER = {"language_model.model.": "model.language_model.", "language_model.lm_head": "lm_head"}
TOWERS = r"^(?=vision_tower\.|multi_modal_projector\.)"


def described(architecture: str, text: Any, **more: Any) -> ModelConfig:
    values = {"architectures": [architecture], "text_config": text, **more}
    return ModelConfig(Path("model"), architecture, text_values(values), "float32", 16, ())


def newer(name: str) -> str:
    """Spell a name as models do that transformers 5 writes without looking back."""
    for begin, other in OLDER.items():
        name = other + name.removeprefix(begin) if name.startswith(begin) else name
    return re.sub(TOWERS, "model.", name)


@pytest.mark.parametrize("name", ["gemma3-seeing", "mistral3"])
def test_both_layouts_are_the_same_model(name, variants, checkpoints, stepper_class, tmp_path):
    path = checkpoints.get(variants[name]).path
    tensors = load_file(path / "model.safetensors")
    renamed = {newer(key): value for key, value in tensors.items()}
    assert not renamed.keys() & tensors.keys()
    save_file(renamed, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    text = [random.randrange(256) for _ in range(20)]
    ours = [stepper_class(place, 64).step({0: text})[0] for place in (path, tmp_path)]
    assert torch.equal(*ours)


def test_parts_that_see_are_counted(variants, checkpoints, stepper_class):
    path = checkpoints.get(variants["gemma3-seeing"]).path
    weights = stepper_class(path, 64).ctx.weights
    others = [key for key in load_file(path / "model.safetensors") if "language_model" not in key]
    told = weights.notice()["unused weights"]
    assert told.startswith(f"{len(others)} tensors of the parts that see or hear")
    assert "images or audio are refused" in told
    with pytest.raises(CheckpointError, match=r"holds model\.unheard\.weight"):
        weights.wants("model.unheard.weight")


@pytest.mark.parametrize("name", COMPOSITES)
def test_every_text_part_is_described(name):
    assert set(COMPOSITES[name].values()) <= ARCHITECTURES.keys()


SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**SIZES, "intermediate_size": 48, "num_key_value_heads": 2}
STATES = {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 2}
#: What a text part has besides.
UNLIKE = {"Blip2ForConditionalGeneration": {"ffn_dim": 48, "word_embed_proj_dim": 32}} | {
    name: {"layers_block_type": ["mamba", "attention"], **STATES}
    for name in ("NemotronH_Omni_Reasoning_V3", "Nemotron3_5TranscribeForConditionalGeneration")
}
#: Other parts are no deeper than this.
SHALLOW = {"num_hidden_layers": 1, "depth": 1, "num_layers": 1}


@pytest.mark.parametrize(
    "name",
    [
        "Blip2ForConditionalGeneration",
        "Cosmos3OmniForConditionalGeneration",
        "DeepseekVLHybridForConditionalGeneration",
        "GraniteSpeechForConditionalGeneration",
        "GraniteSpeechPlusForConditionalGeneration",
        "Granite4VisionForConditionalGeneration",
        "GotOcr2ForConditionalGeneration",
        "InstructBlipVideoForConditionalGeneration",
        "JanusForConditionalGeneration",
        "LightOnOcrForConditionalGeneration",
        "MusicFlamingoForConditionalGeneration",
        "Nemotron3_5TranscribeForConditionalGeneration",
        "NemotronH_Omni_Reasoning_V3",
        "VibeVoiceAsrForConditionalGeneration",
        "VideoLlavaForConditionalGeneration",
        "VipLlavaForConditionalGeneration",
    ],
)
def test_all_names_of_transformers_classes_are_known(name, selector_context):
    """Of those whose text part has no other numbers than its family's: these are tested there."""
    kind = getattr(transformers, name)
    values = kind.config_class().to_dict()
    for part in values.values():
        if isinstance(part, dict):
            part.update({key: value for key, value in SHALLOW.items() if key in part})
    family = next(iter(COMPOSITES[name]))
    values["text_config"] = {"model_type": family, **TEXT, **UNLIKE.get(name, {})}
    if "deepstack_layer_map" in values:
        values |= {"deepstack_layer_map": [[0, 0]], "downsample_rate": "1/4"}
    config = kind.config_class.from_dict(values)
    with torch.device("meta"):
        names = set(kind(config).state_dict())
    ctx = fresh(selector_context)
    build(described(name, config.to_dict()["text_config"]), ctx)
    wanted = {name for name in map(ctx.weights.known_as, names) if ctx.weights.wants(name)}
    assert ctx.weights.expected.keys() == wanted


def fresh(context: BuildContext) -> BuildContext:
    return BuildContext(context.selector, "float32", "float32", 4, 32)


def test_published_files_may_be_flat(selector_context):
    """Those of Qwen 2 VL say what the text part is at the top; others have to say it below."""
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    values = {**sizes, "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48}
    rope = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}}

    def flat(architecture: str) -> ModelConfig:
        known = {"architectures": [architecture], "vision_config": {}, **values, **rope}
        return ModelConfig(Path("model"), architecture, known, "float32", 16, ())

    ctx = fresh(selector_context)
    build(flat("Qwen2VLForConditionalGeneration"), ctx)
    weights = ctx.weights
    assert weights.known_as("model.language_model.norm.weight") in weights.expected
    assert not weights.wants("visual.merger.mlp.0.weight")
    with pytest.raises(CheckpointError, match="text_config is None"):
        build(flat("Qwen3VLForConditionalGeneration"), selector_context)


def test_a_model_that_speaks_writes_text(selector_context):
    config = described(
        "Qwen2_5OmniModel",
        {"model_type": "qwen2_5_omni_text", "tie_word_embeddings": False, **TEXT},
    )
    ctx = fresh(selector_context)
    build(config, ctx)
    for name in ("thinker.lm_head.weight", "thinker.model.layers.1.mlp.up_proj.weight"):
        assert ctx.weights.wants(ctx.weights.known_as(name))
    for name in ("thinker.visual.x.weight", "talker.model.norm.weight", "token2wav.x.weight"):
        assert not ctx.weights.wants(ctx.weights.known_as(name))


@pytest.mark.parametrize("family", ["internlm2", "qwen2"])
def test_internvl_has_a_form_of_its_own(family, selector_context):
    """As before transformers had it: `llm_config`, and the text part's own names."""
    sizes = {"num_key_value_heads": 2, "intermediate_size": 48, **SIZES}
    llm = {"model_type": family, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, **sizes}
    values = {"architectures": ["InternVLChatModel"], "llm_config": llm, "vision_config": {}}
    known = text_values(values)
    ctx = fresh(selector_context)
    build(ModelConfig(Path("model"), "InternVLChatModel", known, "float32", 16, ()), ctx)
    own = ("tok_embeddings", "output") if family == "internlm2" else ("embed_tokens", "lm_head")
    names = [f"language_model.model.{own[0]}.weight", f"language_model.{own[1]}.weight"]
    assert all(ctx.weights.wants(ctx.weights.known_as(name)) for name in names)
    for other in ("vision_model.embeddings.class_embedding", "mlp1.0.weight"):
        assert not ctx.weights.wants(ctx.weights.known_as(other))


OWN_FORMS = {
    "DotsOCRForCausalLM": ({}, "", "vision_tower.x.weight"),
    "HCXVisionForCausalLM": (
        {"language_config": "llama"},
        "language_model.model.",
        "mm_projector.x",
    ),
    "InternS1ForConditionalGeneration": (
        {"text_config": "qwen3"},
        "model.language_model.",
        "model.vision_tower.x.weight",
    ),
    "IsaacForConditionalGeneration": ({}, "model.text_model.", "model.vision_embedding.1.weight"),
    "KeyeForConditionalGeneration": ({}, "model.", "mlp_AR.linear_1.weight"),
    "KeyeVL1_5ForConditionalGeneration": ({}, "model.", "visual.vision_model.x.weight"),
    "MiDashengLMModel": (
        {"text_config": "qwen2_5_omni_text"},
        "decoder.model.",
        "audio_projector.net.0.weight",
    ),
    "MiniCPMV": ({"version": 2.6}, "llm.model.", "resampler.kv_proj.weight"),
    "OpenCUAForConditionalGeneration": (
        {"text_config": "qwen2"},
        "language_model.model.",
        "vision_tower.x.weight",
    ),
    "Ovis2_5": ({"llm_config": "qwen3"}, "llm.model.", "vte.weight"),
    "Phi3VForCausalLM": ({}, "model.", "model.vision_embed_tokens.sub_GN"),
}


@pytest.mark.parametrize("name", OWN_FORMS)
def test_forms_of_published_code_are_read(name, selector_context):
    """Wherever they describe the text part, and whatever they call its tensors."""
    place, prefix, other = OWN_FORMS[name]
    text = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6, **TEXT}
    values: dict[str, Any] = {"architectures": [name], "vision_config": {}, "model_type": "any"}
    for key, family in place.items():
        if key == "version":
            values |= {key: family, **text}
        else:
            values[key] = {"model_type": family, **text}
    known = text_values(values if place else {**values, **text})
    ctx = fresh(selector_context)
    build(ModelConfig(Path("model"), name, known, "float32", 16, ()), ctx)
    prefix = prefix or "model."
    head = "lm_head" if prefix.startswith("model.") else prefix.removesuffix("model.") + "lm_head"
    for own in (f"{prefix}norm.weight", f"{head}.weight"):
        assert ctx.weights.wants(ctx.weights.known_as(own)), own
    assert not ctx.weights.wants(ctx.weights.known_as(other))


def test_a_version_that_is_not_known_is_named(selector_context):
    config = described("MiniCPMV", {}, version=9)
    with pytest.raises(CheckpointError, match=r"version is 9, .* known: 2\.0, 2\.5, 2\.6"):
        build(config, selector_context)


@pytest.mark.parametrize(
    "name",
    [
        "connector.weight",
        "image_newline",
        "visual.x.weight",
        "merger.mlp.0.linear.weight",
        "vision_embedder.pos_norm.bias",
    ],
)
def test_parts_beside_the_text_are_passed_over(name, selector_context):
    text = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 64}
    config = described("SmolVLMForConditionalGeneration", {**text, "num_attention_heads": 4})
    ctx = fresh(selector_context)
    build(config, ctx)
    assert not ctx.weights.wants(f"model.{name}" if "." in name else name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "text_config is None, but Gemma3ForConditionalGeneration needs an object"),
        ([], r"text_config is \[\]"),
        ({"model_type": "llama"}, "text_config.model_type is 'llama'.*known: gemma3_text"),
        ({"model_type": ["gemma3_text"]}, "text_config.model_type is"),
        ({"head_dim": 0}, "head_dim"),
    ],
)
def test_bad_values_are_named(text, message, selector_context):
    with pytest.raises(CheckpointError, match=message):
        build(described("Gemma3ForConditionalGeneration", text), selector_context)


def test_transformers_code_serves_a_text_part(selector_context):
    """Files may have either layout; what sees is left out."""
    kind = transformers.LlavaForConditionalGeneration
    values = {"text_config": {"model_type": "llama", **TEXT}, "vision_config": {**SHALLOW, **SIZES}}
    config = kind.config_class.from_dict(values)
    with torch.device("meta"):
        names = set(kind(config).state_dict())
    ctx = fresh(selector_context)
    written = config.to_dict()
    hf.build(described(kind.__name__, written["text_config"], **without_text(written)), ctx)
    for older in (False, True):
        known = {ctx.weights.known_as(as_older(name) if older else name) for name in names}
        assert {name for name in known if ctx.weights.wants(name)} == ctx.weights.expected.keys()
    [(why, others)] = ctx.weights.unused.items()
    assert "images or audio are refused" in why
    assert others == {name for name in names if "language_model" not in name and "lm_" not in name}


def without_text(values: dict[str, Any]) -> dict[str, Any]:
    return {key: values[key] for key in ("model_type", "vision_config", "tie_word_embeddings")}


def as_older(name: str) -> str:
    """Spell a name as transformers 4 did."""
    for begin, other in OLDER.items():
        name = begin + name.removeprefix(other) if name.startswith(other) else name
    return name


def test_a_missing_output_matrix_is_noticed(variants, checkpoints, stepper_class, tmp_path):
    """Where the two places disagree about it, it is read."""
    path = checkpoints.get(variants["gemma3-seeing"]).path
    values = json.loads((path / "config.json").read_text())
    values["text_config"]["tie_word_embeddings"] = False
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "model.safetensors").symlink_to(path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight"):
        stepper_class(tmp_path, 64)


@pytest.fixture
def selector_context(build_family) -> BuildContext:
    """A context like any other, in which another model has been built."""
    return build_family("Llama")
