"""Tokenizers made of metadata: how text is cut, merged, framed and put together again."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins.models.gguf.conftest import vocabulary, write
from transformers import GemmaTokenizer, XLMRobertaTokenizer

from hotshoe.errors import CheckpointError
from hotshoe.text import Tokenizer
from hotshoe_models.gguf.cuts import CUTS
from hotshoe_models.gguf.header import Header
from hotshoe_models.gguf.metadata import Metadata
from hotshoe_models.gguf.tokenizer import tokenizer_of

PREFIX = "tokenizer.ggml."
#: A vocabulary of SentencePiece: joined tokens and their scores.
JOINED = {"▁a": -1.0, "ab": -2.0, "ba": -3.0, "▁ab": -4.0, "aba": -5.0, "abab": -6.0, "▁▁": -7.0}
LETTERS = ("▁", "a", "b", "c")


class Made:
    """A tokenizer of a file with some metadata."""

    def __init__(self, path: Path, values: Mapping[str, Any], arch: str = "llama") -> None:
        file = write(path, arch, values, {})
        self.parts = tokenizer_of(Metadata([Header(file)]))
        self.backend = tokenizers.Tokenizer.from_buffer(self.parts.model)

    def texts(self, text: str) -> list[str]:
        return self.backend.encode(text).tokens


@pytest.fixture
def make(tmp_path: Path):
    def made(values: Mapping[str, Any], arch: str = "llama") -> Made:
        return Made(tmp_path / "m.gguf", values, arch)

    return made


def pieces(**values: Any) -> dict[str, Any]:
    """Return metadata of a SentencePiece vocabulary with byte fallback."""
    single = {"<unk>": (0.0, 2), "<s>": (0.0, 3), "</s>": (0.0, 3), "<|user|>": (0.0, 4)}
    single |= {f"<0x{i:02X}>": (0.0, 6) for i in range(256)}
    single |= {text: (score, 1) for text, score in JOINED.items()}
    single |= {text: (-100.0 - i, 1) for i, text in enumerate(LETTERS)}
    return {
        f"{PREFIX}model": "llama",
        f"{PREFIX}tokens": list(single),
        f"{PREFIX}scores": [score for score, _ in single.values()],
        f"{PREFIX}token_type": [kind for _, kind in single.values()],
        f"{PREFIX}bos_token_id": 1,
        f"{PREFIX}eos_token_id": 2,
        f"{PREFIX}unknown_token_id": 0,
        **{f"{PREFIX}{key}": value for key, value in values.items()},
    }


def merged(text: str) -> list[str]:
    """Join the two neighbors whose joined token has the best score, the leftmost first."""
    parts = list(text)
    while True:
        found = [
            (-JOINED[parts[i] + parts[i + 1]], i)
            for i in range(len(parts) - 1)
            if parts[i] + parts[i + 1] in JOINED
        ]
        if not found:
            return parts
        _, i = min(found)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@given(st.text("abc ", min_size=1, max_size=12))
def test_pieces_are_merged_by_score(tmp_path_factory, text: str) -> None:
    made = Made(tmp_path_factory.mktemp("m") / "m.gguf", pieces(add_bos_token=False))
    assert made.texts(text) == merged("▁" + text.replace(" ", "▁"))
    ids = made.backend.encode(text).ids
    assert made.backend.decode(ids) == text


def test_letters_without_a_token_become_bytes(make) -> None:
    made = make(pieces())
    assert made.texts("ü<|user|>") == ["<s>", "▁", "<0xC3>", "<0xBC>", "<|user|>"]
    assert made.backend.decode(made.backend.encode("aüb").ids) == "aüb"


def test_no_blank_before_the_text_where_the_file_says_so(make) -> None:
    made = make(pieces(add_space_prefix=False, add_eos_token=True))
    assert made.texts("ab") == ["<s>", "ab", "</s>"]
    assert made.backend.decode(made.backend.encode(" ab").ids) == " ab"


@given(st.text(st.sampled_from("ab c\n\u0301")))
def test_listed_merges_of_pieces(tmp_path_factory, text: str) -> None:
    """Gemma 4's; the reference is transformers' tokenizer of the same merges."""
    pairs = ("▁ a", "a b", "▁ ▁", "▁a b", "\n \n")
    values = pieces(merges=list(pairs), model="gemma4", add_space_prefix=False)
    del values[f"{PREFIX}scores"]
    for added in ("\n", "\n\n"):
        values[f"{PREFIX}tokens"].append(added)
        values[f"{PREFIX}token_type"].append(1)
    own = Made(tmp_path_factory.mktemp("gemma") / "m.gguf", values, "gemma4")
    tokens = values[f"{PREFIX}tokens"]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(pair.split(" ")) for pair in pairs]
    theirs = GemmaTokenizer(vocab=vocab, merges=merges, bos_token="<s>", eos_token="</s>")
    wanted = theirs.backend_tokenizer.encode(text, add_special_tokens=False)
    found = own.backend.encode(text, add_special_tokens=False)
    assert found.ids == wanted.ids
    assert own.backend.decode(found.ids) == text == theirs.backend_tokenizer.decode(wanted.ids)
    assert own.texts("a")[0] == "<s>"


def test_markers_of_phi3_take_the_blanks_behind_them(make) -> None:
    found = make(pieces(), "phi3").texts("<|user|> \n ab")
    assert [text.strip() for text in found] == ["<s>", "<|user|>", "▁ab"]
    assert "<0x0A>" in make(pieces()).texts("<|user|> \n ab")


CUT = {
    "gpt-2": ["I", "'ll", " pay", " 1234", "!?", "\n ", " xy"],
    "smollm": ["I", "'ll", " pay", " ", "1", "2", "3", "4", "!?", "\n ", " xy"],
    "qwen2": ["I", "'ll", " pay", " ", "1", "2", "3", "4", "!?\n", " ", " xy"],
    "llama-bpe": ["I", "'ll", " pay", " ", "123", "4", "!?\n", " ", " xy"],
    "smaug-bpe": ["I", "'ll", " pay", " ", "123", "4", "!?\n", " ", " xy"],
    "tekken": ["I", "'ll", " pay", " ", "1", "2", "3", "4", "!?\n", " ", " xy"],
    "gpt-4o": ["I'll", " pay", " ", "123", "4", "!?\n", " ", " xy"],
    "glm4": ["I", "'ll", " pay", " ", "123", "4", "!?\n", " ", " xy"],
    "minicpm5": ["I", "'ll", " pay", " ", "123", "4", "!?\n", " ", " xy"],
    "hunyuan": ["I", "'ll", " pay", " ", "1", "2", "3", "4", "!?\n", " ", " xy"],
    "seed-coder": ["I", "'ll", " pay", " ", "1", "2", "3", "4", "!?", "\n", " ", " xy"],
    "minimax-m2": ["I'll", " pay", " ", "123", "4", "!?\n", " ", " xy"],
    "kimi-k2": ["I'll", " pay", " ", "123", "4", "!?\n", " ", " xy"],
    "deepseek-v3": ["I", "'ll", " pay", " ", "123", "4", "!?\n", " ", " xy"],
    "deepseek-llm": ["I", "'", "ll", " pay", " ", *"1234", "!?", "\n", " ", " xy"],
    "deepseek-coder": ["I", "'", "ll", " pay", " ", *"1234", "!?", "\n", " ", " xy"],
    "bloom": ["I'll", " pay", " 1234", "!?\n ", " xy"],
    "viking": ["I'll", " pay", " ", "1", "2", "3", "4", "!?\n ", " xy"],
}


@pytest.mark.parametrize("pre", CUT)
def test_how_text_is_cut(make, pre: str) -> None:
    made = make(vocabulary(280) | {f"{PREFIX}pre": pre})
    text = "I'll pay 1234!?\n  xy"
    found = made.backend.pre_tokenizer.pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in found] == CUT[pre]


def test_upper_case_begins_a_piece(make) -> None:
    for pre in ("tekken", "gpt-4o"):
        made = make(vocabulary(280) | {f"{PREFIX}pre": pre})
        found = made.backend.pre_tokenizer.pre_tokenize_str("camelCaseHTTPÜber")
        assert [begin for _, (begin, _) in found] == [0, 5, 9]


def test_bytes_and_merges(make) -> None:
    made = make(vocabulary(280))
    assert made.texts("aibjü</s>") == ["ai", "bj", "Ã", "¼", "</s>"]
    text = "".join(random.choices("aäib jß\n", k=40))
    assert made.backend.decode(made.backend.encode(text).ids) == text
    assert made.backend.encode("e\u0301").ids == made.backend.encode("é").ids  # qwen2 composes


def test_who_begins_with_a_first_token(make) -> None:
    values = vocabulary(280)
    assert make(values).texts("x") == ["x"]
    assert make(values | {f"{PREFIX}add_bos_token": True}).texts("x") == ["<s>", "x"]
    llama3 = values | {f"{PREFIX}pre": "llama-bpe"}
    assert make(llama3).texts("x") == ["<s>", "x"]
    assert make(llama3 | {f"{PREFIX}add_bos_token": False}).texts("x") == ["x"]


def test_special_tokens_and_templates(make) -> None:
    made = make(
        vocabulary(280)
        | {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "{{ 1 }}"}
    )
    config = made.parts.config
    assert (config["bos_token"], config["eos_token"], config["pad_token"]) == (
        "<s>",
        "</s>",
        "<pad>",
    )
    names = [template["name"] for template in config["chat_template"]]
    assert names == ["default", "tool_use"]
    added = made.backend.get_added_tokens_decoder()
    assert {i: token.special for i, token in added.items()} == {0: True, 1: True, 2: True}


def test_every_way_of_cutting_can_be_built(make) -> None:
    for pre in CUTS:
        assert make(vocabulary(280) | {f"{PREFIX}pre": pre}).texts("ai")[-1] == "ai"


WRONG = {
    "model": ("rwkv", "tokenizer.ggml.model is 'rwkv'"),
    "pre": ("martian", "tokenizer.ggml.pre is 'martian', a way of cutting text"),
    "merges": (["a b c"], "joins no two tokens"),
    "tokens": (["a", "a"] * 140, "must be tokens that differ"),
    "token_type": ([1, 1], "there are 280 tokens"),
    "bos_token_id": (5000, "bos_token_id is 5000, but there are 280"),
    "add_eos_token": ("yes", "must be true or false"),
}


@pytest.mark.parametrize("key", WRONG)
def test_metadata_that_cannot_be_used(make, key: str) -> None:
    value, said = WRONG[key]
    with pytest.raises(CheckpointError, match=said):
        make(vocabulary(280) | {PREFIX + key: value})


def test_missing_metadata(make) -> None:
    for key in ("tokens", "merges", "pre", "model"):
        values = {k: v for k, v in vocabulary(280).items() if k != PREFIX + key}
        with pytest.raises(CheckpointError, match=f"{PREFIX}{key} is missing"):
            make(values)
    with pytest.raises(CheckpointError, match="scores is missing, but must be numbers"):
        make({k: v for k, v in pieces().items() if k != f"{PREFIX}scores"})
    with pytest.raises(CheckpointError, match="chat_template is 3, but must be text"):
        make(vocabulary(280) | {"tokenizer.chat_template": 3})


def test_the_engine_reads_it(tiny: Path) -> None:
    from hotshoe_models.gguf.model import FORMAT

    found = Tokenizer.of_file(tiny, FORMAT.open(tiny))
    assert found.encode("ai") == [3] and found.decode([3]) == "ai"
    assert (found.bos_token_id, found.eos_token_id, found.eos_token_ids) == (1, 2, (2,))
    assert found.special_token_ids == {0, 1, 2} and found.vocab_size == 300


def words(*texts: str, **values: Any) -> dict[str, Any]:
    """Return metadata of a WordPiece vocabulary as converters write it."""
    control = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    plain = [t.removeprefix("##") if t.startswith("##") else f"▁{t}" for t in texts]
    roles = {"padding": 0, "unknown": 1, "cls": 2, "seperator": 3, "mask": 4}
    return {
        f"{PREFIX}model": "bert",
        f"{PREFIX}tokens": [*control, *plain],
        f"{PREFIX}token_type": [3] * len(control) + [1] * len(plain),
        **{f"{PREFIX}{role}_token_id": number for role, number in roles.items()},
        **{f"{PREFIX}{key}": value for key, value in values.items()},
    }


def test_words_are_cut_into_pieces(make) -> None:
    made = make(words("red", "panda", "##s", "##ish", "!", "[", "##["), "bert")
    assert made.texts("Red pandas ![") == ["[CLS]", "red", "panda", "##s", "!", "[", "[SEP]"]
    assert made.texts("reddish") == ["[CLS]", "[UNK]", "[SEP]"]
    assert made.backend.encode("red", "redish").type_ids == [0, 0, 0, 1, 1, 1]
    assert made.parts.config["sep_token"] == "[SEP]" and made.parts.config["mask_token"] == "[MASK]"
    cased = make(words("red", "Red", add_eos_token=False), "bert")
    assert cased.texts("Red red RED") == ["[CLS]", "Red", "red", "[UNK]", "[SEP]"]


def test_unigrams_are_cut_by_their_scores(make) -> None:
    scored = {"<s>": 0.0, "<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0, "▁": -3.0, "▁ab": -1.0}
    scored |= {"a": -2.0, "b": -2.0, "ab": -2.5, "▁a": -1.5}
    values = {
        f"{PREFIX}model": "t5",
        f"{PREFIX}tokens": list(scored),
        f"{PREFIX}scores": list(scored.values()),
        f"{PREFIX}token_type": [3, 3, 3, 2, *[1] * 6],
        f"{PREFIX}add_bos_token": True,
        **{f"{PREFIX}{role}_token_id": i for role, i in (("bos", 0), ("eos", 2), ("unknown", 3))},
    }
    wanted = XLMRobertaTokenizer(vocab=list(scored.items()))
    for text in ("ab  abab", " a b c", "aab\nba"):
        assert make(values, "bert").backend.encode(text).ids == wanted(text).input_ids
    with pytest.raises(CheckpointError, match=r"charsmap is \[300\], but must be a list"):
        make(values | {f"{PREFIX}precompiled_charsmap": [300]}, "bert")
