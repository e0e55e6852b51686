"""Values of a kind are found or refused by key, and configurations follow from them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plugins.models.gguf.conftest import vocabulary, write

from hotshoe.errors import CheckpointError
from hotshoe_models.gguf.families import MIXTURES, config_of
from hotshoe_models.gguf.header import Header
from hotshoe_models.gguf.metadata import Metadata

VALUES = {
    "context_length": 64,
    "embedding_length": 32,
    "block_count": 2,
    "feed_forward_length": 64,
    "attention.head_count": 4,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
TENSORS = {"token_embd.weight": np.ones((300, 32), np.float32)}


@pytest.fixture
def meta(tmp_path: Path):
    def made(
        arch: str = "llama", tensors: dict[str, Any] = TENSORS, kind: Any = "F32", **changed: Any
    ) -> Metadata:
        values = VALUES | {key.replace("__", "."): value for key, value in changed.items()}
        values = {f"{arch}.{key}": v for key, v in values.items() if v is not None}
        path = tmp_path / "m.gguf"
        write(
            path,
            arch,
            values | vocabulary(300),
            tensors,
            kind if callable(kind) else lambda name: kind,
        )
        return Metadata([Header(path)])

    return made


def test_what_a_file_does_not_say_follows(meta) -> None:
    config = config_of(meta())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["vocab_size"] == 300
    assert config["num_key_value_heads"] == 4 and config["head_dim"] == 8
    assert config["tie_word_embeddings"] and not config["attention_bias"]
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 10_000.0}
    assert config["eos_token_id"] == [2] and config["bos_token_id"] == 1


def test_the_type_is_that_of_the_matrices(meta) -> None:
    for kind, dtype in {"F32": "float32", "F16": "float16", "Q8_0": "bfloat16"}.items():
        assert config_of(meta(kind=kind))["dtype"] == dtype


def test_small_matrices_in_another_type_change_nothing(meta) -> None:
    small = {"blk.0.ssm_conv1d.weight": np.ones((32, 4), np.float32)}
    for kind, dtype in {"F16": "float16", "BF16": "bfloat16", "Q8_0": "bfloat16"}.items():
        made = meta(
            tensors=TENSORS | small, kind=lambda name, kind=kind: "F32" if "ssm" in name else kind
        )
        assert config_of(made)["dtype"] == dtype


def test_lists_that_repeat_one_number(meta) -> None:
    assert config_of(meta(feed_forward_length=[64, 64]))["intermediate_size"] == 64
    with pytest.raises(CheckpointError, match=r"llama.feed_forward_length is \[64, 32\]"):
        config_of(meta(feed_forward_length=[64, 32]))


def test_a_window_makes_a_llama_a_mistral(meta) -> None:
    config = config_of(meta(attention__sliding_window=16))
    assert (config["architectures"], config["sliding_window"]) == (["MistralForCausalLM"], 16)


@pytest.mark.parametrize(
    ("layers", "scalar"), [(26, 8), (46, 32 // 4)], ids=["a head", "the hidden size"]
)
def test_the_scale_of_gemma_follows_its_size(meta, layers: int, scalar: int) -> None:
    made = meta("gemma2", block_count=layers, attention__key_length=8 if layers == 26 else 16)
    assert config_of(made)["query_pre_attn_scalar"] == scalar


def test_bases_of_gemma3(meta) -> None:
    config = config_of(meta("gemma3", attention__key_length=8, attention__sliding_window=9))
    rope = config["rope_parameters"]
    assert rope["full_attention"]["rope_theta"] == 1e6 and config["sliding_window_pattern"] == 6
    assert rope["sliding_attention"]["rope_theta"] == 1e4


@pytest.mark.parametrize(
    ("arch", "changed", "said"),
    [
        ("rwkv7", {}, "general.architecture is 'rwkv7', is not read; known are afmoe, apertus"),
        ("qwen2", {"expert_count": 8}, "qwen2.expert_count is 8, but qwen2 is not read with exp"),
        ("qwen3moe", {}, "qwen3moe.expert_count is missing, but qwen3moe is not read without exp"),
        ("llama", {"expert_count": 8}, "llama.expert_used_count is missing, but must be a positi"),
        ("llama", {"block_count": None}, "llama.block_count is missing, but must be a positive"),
        ("llama", {"block_count": "two"}, "block_count is 'two'"),
        ("llama", {"attention.head_count": 0}, "head_count is 0"),
        ("llama", {"attention.layer_norm_rms_epsilon": float("nan")}, "epsilon is nan"),
        ("llama", {"attention.value_length": 4}, "value_length is 4, but keys have 8"),
        ("llama", {"rope.scaling.type": "longcat"}, "rope.scaling.type is 'longcat'"),
        ("granite", {}, "granite.attention.scale is missing, but must be a number"),
    ],
)
def test_what_cannot_be_served(meta, arch: str, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        config_of(meta(arch, **changed))


@pytest.mark.parametrize("held", [None, 3, 5])
def test_experts_are_as_many_as_the_tensors_hold(meta, held: int | None) -> None:
    values = {"expert_count": 4, "expert_used_count": 2}
    name, stack = "blk.0.ffn_up_exps.weight", np.ones((held or 1, 2, 32), np.float32)
    made = meta("olmoe", TENSORS | ({name: stack} if held else {}), **values)
    with pytest.raises(CheckpointError, match="expert_count is 4, but tensors of experts hold an"):
        config_of(made)
    right = TENSORS | {name: np.ones((4, 2, 32), np.float32)}
    assert config_of(meta("olmoe", right, **values))["num_experts"] == 4


GLM = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 16,
    "attention__key_length": 8,
    "rope__dimension_count": 4,
}
STACKS = TENSORS | {"blk.1.ffn_up_exps.weight": np.ones((4, 16, 32), np.float32)}


def test_layers_that_predict_further_tokens_come_last(meta) -> None:
    config = config_of(meta("glm4moe", STACKS, **GLM, nextn_predict_layers=1))
    assert config["num_hidden_layers"] == config["num_nextn_predict_layers"] == 1
    assert config["partial_rotary_factor"] == 0.5 and not config["use_qk_norm"]
    named = MIXTURES["glm4moe"].known_as
    assert named("blk.1.nextn.eh_proj.weight") == "model.layers.1.eh_proj.weight"
    assert named("blk.1.nextn.shared_head_norm.weight") == "model.layers.1.shared_head.norm.weight"


def test_a_router_scores_as_its_family_does(meta) -> None:
    with pytest.raises(CheckpointError, match=r"glm4moe.expert_gating_func .*2, a sigmoid"):
        config_of(meta("glm4moe", STACKS, **GLM, expert_gating_func=1))


def test_what_must_be_there(meta, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="lacks the tensor token_embd"):
        config_of(meta(tensors={}))
    factors = {**TENSORS, "rope_freqs.weight": np.ones(5000, np.float32)}
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight has 5000 values of type F32"):
        config_of(meta(tensors=factors))


def test_control_tokens_that_end_a_turn(meta, tmp_path: Path) -> None:
    values = vocabulary(300)
    values["tokenizer.ggml.tokens"][0] = "<|im_end|>"
    values["tokenizer.ggml.eot_token_id"] = 7
    path = write(tmp_path / "e.gguf", "llama", values, {})
    assert Metadata([Header(path)]).ending_ids() == [2, 7, 0]


def test_a_message_of_gpt_oss_ends_no_turn(meta, tmp_path: Path) -> None:
    """The answer follows the reasoning's `<|end|>`, and a call ends a turn."""
    values = vocabulary(300)
    texts = ["<|return|>", "<|call|>", "<|end|>", "<|endoftext|>"]
    values["tokenizer.ggml.tokens"][290:294] = texts
    values["tokenizer.ggml.token_type"][290:294] = [3] * 4
    values |= {"tokenizer.ggml.eos_token_id": 290, "tokenizer.ggml.eot_token_id": 292}
    path = write(tmp_path / "e.gguf", "gpt-oss", values, {})
    assert Metadata([Header(path)]).ending_ids() == [290, 291, 293]
    values["tokenizer.ggml.tokens"][291] = "another"
    assert 292 in Metadata([Header(write(path, "gpt-oss", values, {}))]).ending_ids()


def test_what_a_file_says_of_yarn(meta) -> None:
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    plain = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0}
    assert config_of(meta(**yarn))["rope_parameters"] == plain
    more = {f"rope__scaling__yarn_{key}": 2.0 for key in ("beta_fast", "beta_slow", "attn_factor")}
    named = dict.fromkeys(("beta_fast", "beta_slow", "attention_factor"), 2.0)
    assert config_of(meta(**yarn, **more))["rope_parameters"] == plain | named
    with pytest.raises(CheckpointError, match=r"yarn_ext_factor is 0.5, but is read as 1"):
        config_of(meta(**yarn, rope__scaling__yarn_ext_factor=0.5))
