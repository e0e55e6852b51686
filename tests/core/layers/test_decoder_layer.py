"""A whole layer, and all of a stage: weights, cache and steps are those of the composed model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hotshoe import LLM, SamplingParams, TokensPrompt

CONFIG = {
    "hidden_act": "silu",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "sliding_window": 9,
}
MODELS = ("Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., object]:
    """Return tokens of a model of random weights, and who served it."""

    def run(architecture: str, kernel: dict[str, str], **options: object) -> object:
        values = {"architectures": [architecture], **CONFIG}
        (tmp_path / "config.json").write_text(json.dumps(values))
        llm = LLM(
            str(tmp_path),
            platform="cpu",
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=96,
            max_num_seqs=3,
            seed=4,
            kernel=kernel,
            **options,
        )
        prompts = [TokensPrompt([7, 8, 9] * n) for n in (1, 4, 9)]
        try:
            params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
            outputs = llm.generate(prompts, params)
            info = llm.engine.core.info
        finally:
            llm.close()
        chosen = {d.slot: d.chosen for d in info.decisions}
        return [output.outputs[0].token_ids for output in outputs], chosen

    return run


@pytest.mark.parametrize("architecture", MODELS)
def test_all_ways_give_the_same_tokens(run, architecture: str) -> None:
    tokens, chosen = run(architecture, {})
    assert (chosen["decoder_layer"], chosen["model_step"]) == ("composed", "composed")
    for slot in ("decoder_layer", "model_step"):
        again, chosen = run(architecture, {slot: "reference"})
        assert again == tokens
        assert chosen[slot] == "reference"
        assert not {"attention", "gated_mlp", "rotary_and_cache"} & chosen.keys()


@pytest.mark.parametrize("slot", ["decoder_layer", "model_step"])
def test_drafts_are_rows_of_a_step(run, slot: str) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    tokens, _ = run(MODELS[1], {slot: "reference"}, speculative_config=drafts)
    assert tokens == run(MODELS[1], {})[0]
