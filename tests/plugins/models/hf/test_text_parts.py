"""The text part of a class that sees has its own values again, and options of its own."""

from transformers import LlamaConfig, LlavaConfig

from hotshoe.models.composites import text_values
from hotshoe_models.hf.text_parts import text_alone, whole_values


def test_values_are_those_of_the_file() -> None:
    text = {"model_type": "llama", "hidden_size": 8, "tie_word_embeddings": True}
    file = {"model_type": "llava", "text_config": text, "image_token_index": 7}
    assert whole_values(text_values(file)) == {**file, "tie_word_embeddings": True}
    assert whole_values({"model_type": "llama"}) == {"model_type": "llama"}


def test_what_overrides_changed_is_the_text_parts() -> None:
    file = {"model_type": "llava", "text_config": {"hidden_size": 8, "vocab_size": 3}}
    whole = whole_values({**text_values(file), "hidden_size": 16})
    assert whole["text_config"] == {"hidden_size": 16, "vocab_size": 3}
    assert "hidden_size" not in whole


def test_an_option_of_the_text_part() -> None:
    assert text_alone(LlavaConfig(), "own") == {"text_config": "own"}
    assert text_alone(LlamaConfig(), "own") == "own"
