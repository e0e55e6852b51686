"""The bundled files: size, configuration, weights, tokenizer and chat template."""

import json

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from hotshoe_demo import MODEL

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the wéather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln"}}}
WRITTEN = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tok() -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(MODEL)


def render(tok, messages, **options) -> str:
    return tok.apply_chat_template(messages, tokenize=False, **options)


def test_files_stay_small() -> None:
    package = MODEL.parent
    files = [f for f in package.rglob("*") if f.is_file() and "__pycache__" not in f.parts]
    assert sum(file.stat().st_size for file in files) < 38_000_000
    assert {"SOURCES.md", "evaluation.json", "generation_config.json"} <= {f.name for f in files}


def test_configuration_loads_in_transformers() -> None:
    config = transformers.AutoConfig.from_pretrained(MODEL)
    assert config.architectures == ["Qwen3ForCausalLM"]
    assert config.tie_word_embeddings
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (8, 2, 64)
    assert config.max_position_embeddings == 2048


def test_weights_are_finite_bfloat16_of_the_stated_number() -> None:
    weights = load_file(MODEL / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    for name, tensor in weights.items():
        assert torch.isfinite(tensor).all(), name
        assert tensor.float().std() > 0, name
    assert "lm_head.weight" not in weights
    stated = json.loads((MODEL / "evaluation.json").read_text())["training"]["parameters"]
    assert sum(tensor.numel() for tensor in weights.values()) == stated


def test_generation_ends_at_either_mark(tok) -> None:
    generation = transformers.GenerationConfig.from_pretrained(MODEL)
    marks = tok.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert generation.eos_token_id == marks
    assert (tok.eos_token_id, tok.pad_token_id, tok.bos_token_id) == (*marks, None)


def test_vocabulary_matches_the_embedding(tok) -> None:
    assert len(tok) == transformers.AutoConfig.from_pretrained(MODEL).vocab_size == 8192
    assert max(tok.get_vocab().values()) == 8191


@given(st.text())
def test_any_text_survives_a_round_trip(text: str) -> None:
    tok = loaded()
    assert tok.decode(tok(text, add_special_tokens=False)["input_ids"]) == text


_LOADED: list[transformers.PreTrainedTokenizerBase] = []


def loaded() -> transformers.PreTrainedTokenizerBase:
    """Load once; a fixture would be shared between hypothesis' examples all the same."""
    if not _LOADED:
        _LOADED.append(transformers.AutoTokenizer.from_pretrained(MODEL))
    return _LOADED[0]


def test_every_byte_has_a_token(tok) -> None:
    alphabet = {token for token in tok.get_vocab() if len(token) == 1}
    assert len(alphabet) >= 256


def test_digits_are_single_tokens(tok) -> None:
    tokens = tok.tokenize("12345 + 67.8")
    assert [t for t in tokens if any(c.isdigit() for c in t)] == list("12345678")


def test_a_word_is_split_alike_with_and_without_a_space(tok) -> None:
    for word in ("Quinlan", "documentation", "xylophonic", "Zwrgl", "getaway"):
        alone, spaced = tok.tokenize(word), tok.tokenize(f" {word}")
        assert "".join(spaced) == "\u0120" + "".join(alone)
        assert alone[1:] == spaced[-len(alone) :][1:]


def test_template_of_a_plain_chat(tok) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
    ]
    assert render(tok, messages, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nAB<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_opens_a_thought_and_drops_an_old_one(tok) -> None:
    messages = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\n1 + 1 = 2"},
        {"role": "user", "content": "2+2"},
    ]
    text = render(tok, messages, add_generation_prompt=True, enable_thinking=True)
    assert text.endswith("<|im_start|>assistant\n<think>\n")
    assert "assistant\n1 + 1 = 2<|im_end|>" in text


def test_template_lists_tools_as_json(tok) -> None:
    text = render(tok, [{"role": "user", "content": "Hi"}], tools=[TOOL, TOOL])
    listed = text.split("<tools>\n")[1].split("\n</tools>")[0].split("\n")
    assert [json.loads(line) for line in listed] == [TOOL, TOOL]
    with_system = render(
        tok,
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        tools=[TOOL],
    )
    assert with_system.startswith("<|im_start|>system\nBe brief.\n\nYou can call these tools:")
    assert with_system.count("<|im_start|>system") == 1


@pytest.mark.parametrize("as_text", [False, True])
def test_template_writes_calls_and_results(tok, as_text: bool) -> None:
    function = CALL["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False) if as_text else None
    call = CALL | {"function": function | ({"arguments": arguments} if as_text else {})}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "content": "12"},
        {"role": "tool", "content": "13"},
    ]
    assert render(tok, messages).endswith(
        f"<|im_start|>assistant\n{WRITTEN}\n{WRITTEN}<|im_end|>\n<|im_start|>user\n"
        "<tool_response>\n12\n</tool_response>\n<tool_response>\n13\n</tool_response><|im_end|>\n"
    )


def test_every_source_has_a_license_and_a_digest() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in (MODEL / "SOURCES.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| package")
    ]
    assert len(rows) == 30
    for package, version, terms, holder, characters, extract, digest in rows:
        assert all((package, version, terms, holder))
        assert int(characters.replace(",", "")) > 10_000
        assert extract in ("yes", "no")
        assert len(digest.strip("`")) == 64
        assert not (extract == "yes" and "GPL" in terms)
