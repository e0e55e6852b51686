"""Tokenizers as read from model directories."""

import copy
import json
import subprocess
import sys

import pytest

from hotshoe.errors import CheckpointError, RequestError
from hotshoe.text import Tokenizer

KINDS = ["byte_level", "byte_fallback", "metaspace", "unigram", "word_piece"]
TEXT = "The quick  brown fox, naïve 🙂 <|im_start|>don't\n\nstop 日本語"


def test_facts_of_a_directory(make_directory):
    tokenizer = Tokenizer.load(make_directory())
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 3)
    assert tokenizer.eos_token_ids == (3,)
    assert tokenizer.special_token_ids == {0, 1, 2, 3}
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    assert tokenizer.vocab_size == len(tokenizer._backend.get_vocab())
    assert tokenizer.pieces[tokenizer.encode("hello world")[0]] == b"hello world"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config.json": {"eos_token_id": [1, 3, 1]}}, (3, 1)),
        ({"generation_config.json": {"eos_token_id": 1}}, (3, 1)),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": 2}}, (3, 2)),
        (
            {"generation_config.json": {"eos_token_id": 1}, "config.json": {"eos_token_id": 2}},
            (3, 1),
        ),
    ],
)
def test_end_of_sequence_tokens_of_the_generation_config(make_directory, files, expected):
    assert Tokenizer.load(make_directory(**files)).eos_token_ids == expected


@pytest.mark.parametrize("found", [1.5, "ab", ["a"], {"a": 1}, [-4]])
def test_malformed_end_of_sequence_tokens_are_named(make_directory, found):
    directory = make_directory(**{"generation_config.json": {"eos_token_id": found}})
    with pytest.raises(CheckpointError, match="eos_token_id must be a token id or a list"):
        Tokenizer.load(directory)


def test_deeply_nested_json_is_refused(make_directory):
    directory = make_directory()
    (directory / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(
        CheckpointError, match=r"tokenizer_config\.json cannot be read: maximum rec"
    ):
        Tokenizer.load(directory)


def test_chat_templates_of_all_places(make_directory):
    in_config = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    directory = make_directory(config={"chat_template": in_config})
    assert Tokenizer.load(directory).chat_templates == {"default": "A", "tool_use": "B"}
    (directory / "chat_template.jinja").write_text("C")
    assert Tokenizer.load(directory).chat_templates == {"default": "C"}
    more = directory / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("D")
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.chat_templates == {"default": "C", "tool_use": "D"}
    message = [{"role": "user", "content": "x"}]
    assert tokenizer.apply_chat_template(message) == "C"
    assert tokenizer.apply_chat_template(message, tools=[{}]) == "D"


@pytest.mark.parametrize("found", [3, ["x"], [{"name": "default"}], {"default": "x"}, [{}], [None]])
def test_malformed_chat_templates_are_named(make_directory, found):
    directory = make_directory(config={"chat_template": found})
    with pytest.raises(CheckpointError, match="chat_template must be text, or a list"):
        Tokenizer.load(directory)


def test_chat_template_that_is_not_text(make_directory):
    directory = make_directory()
    (directory / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja cannot be read"):
        Tokenizer.load(directory)


def test_special_tokens_map_of_older_checkpoints(make_directory):
    special = {"special_tokens_map.json": {"eos_token": {"content": "</s>"}, "unk_token": "<s>"}}
    assert Tokenizer.load(make_directory(**special)).eos_token_id == 1
    newer = make_directory(config={"added_tokens_decoder": {}}, **special)
    assert Tokenizer.load(newer).eos_token_id == 3


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_text_as_in_transformers(make_directory, kind):
    transformers = pytest.importorskip("transformers")
    directory = make_directory(kind)
    ours = Tokenizer.load(directory)
    theirs = transformers.AutoTokenizer.from_pretrained(str(directory))
    assert ours.encode(TEXT) == theirs.encode(TEXT)
    assert ours.encode(TEXT, False) == theirs.encode(TEXT, add_special_tokens=False)
    for skip in (True, False):
        ids = ours.encode(TEXT)
        assert ours.decode(ids, skip) == theirs.decode(
            ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
        )
    assert ours.vocab_size == len(theirs) and ours.eos_token_id == theirs.eos_token_id


def test_text_that_is_not_unicode_is_refused(byte_level_tokenizer):
    with pytest.raises(RequestError, match="surrogate"):
        byte_level_tokenizer.encode("a\ud800b")


def test_a_text_that_is_clearly_too_long_is_found_without_tokenizing_it_all(byte_level_tokenizer):
    class Counting:
        """The library's tokenizer, noting how much it is given."""

        def __init__(self, backend):
            self.backend, self.num_chars = backend, 0

        def encode_batch_fast(self, texts, **options):
            self.num_chars += sum(map(len, texts))
            return self.backend.encode_batch_fast(texts, **options)

        def __getattr__(self, name):
            return getattr(self.backend, name)

    tokenizer = copy.copy(byte_level_tokenizer)
    tokenizer._backend = counting = Counting(byte_level_tokenizer._backend)
    dense = "a b " * 250_000
    assert tokenizer.exceeds(dense, 1000) and counting.num_chars <= 2000
    longest = max(map(len, tokenizer._backend.get_vocab()))
    counting.num_chars = 0
    assert tokenizer.exceeds("x" * (1000 * longest + 1), 1000) and counting.num_chars == 0


@pytest.mark.parametrize("text", ["", "a b " * 500, "the " * 2000])
def test_no_text_that_fits_is_found_too_long(byte_level_tokenizer, text):
    count = len(byte_level_tokenizer.encode(text, add_special_tokens=False))
    assert not byte_level_tokenizer.exceeds(text, max(count, 1))


def test_a_panic_of_the_library_is_the_texts_fault(byte_level_tokenizer):
    class PanicException(BaseException):
        """As the library raises it."""

    class Panicking:
        def encode_batch_fast(self, texts, **options):
            raise PanicException("attempt to subtract with overflow")

    tokenizer = copy.copy(byte_level_tokenizer)
    tokenizer._backend = Panicking()
    with pytest.raises(RequestError, match="cannot take this text of 3 characters"):
        tokenizer.encode("abc")


def test_stored_truncation_and_padding_are_ignored(make_directory):
    directory = make_directory()
    data = json.loads((directory / "tokenizer.json").read_text())
    data["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (directory / "tokenizer.json").write_text(json.dumps(data))
    assert len(Tokenizer.load(directory).encode(TEXT)) > 4


def test_directory_without_tokenizer_json_goes_through_transformers(make_directory):
    pytest.importorskip("transformers")
    directory = make_directory()
    original = Tokenizer.load(directory)
    data = json.loads((directory / "tokenizer.json").read_text())["model"]
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.json").write_text(json.dumps(data["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in data["merges"])
    (directory / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    converted = Tokenizer.load(directory)
    assert converted.encode("naïve fox") == original.encode("naïve fox")
    assert converted.eos_token_ids == (1,)


def test_unusable_directories_are_named(make_directory, tmp_path, monkeypatch):
    directory = make_directory()
    (directory / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json cannot be read"):
        Tokenizer.load(directory)
    (directory / "tokenizer_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="must hold a JSON object"):
        Tokenizer.load(directory)
    (directory / "tokenizer.json").write_text('{"model": 1}')
    (directory / "tokenizer_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is unusable"):
        Tokenizer.load(directory)
    (directory / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid x\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        Tokenizer.load(directory)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CheckpointError, match="pip install transformers"):
        Tokenizer.load(tmp_path)


def test_empty_directory_with_transformers(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(CheckpointError, match="no tokenizer") as refused:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(refused.value)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(CheckpointError, match=r"holds no tokenizer.*--tokenizer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "quantization_config": [1]}')
    with pytest.raises(CheckpointError, match="transformers finds no tokenizer either"):
        Tokenizer.load(tmp_path)


def test_loading_imports_neither_torch_nor_transformers(make_directory):
    directory = make_directory(config={"chat_template": "{{ messages[0].content }}"})
    program = (
        "import sys; from hotshoe.text import Tokenizer;"
        f"t = Tokenizer.load({str(directory)!r});"
        "t.apply_chat_template([{'role': 'user', 'content': 'x'}]);"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_vocabulary_without_its_token_for_the_unknown_is_refused(make_directory):
    directory = make_directory("no_decoder")
    found = json.loads((directory / "tokenizer.json").read_text())
    del found["model"]["vocab"]["<unk>"]
    (directory / "tokenizer.json").write_text(json.dumps(found))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is unusable"):
        Tokenizer.load(directory)


def test_a_named_token_that_is_not_unicode_is_refused(make_directory):
    directory = make_directory(config={"bos_token": "\ud800"})
    with pytest.raises(CheckpointError, match="bos_token is not valid Unicode"):
        Tokenizer.load(directory)


def test_which_tokenizers_put_spaces_between_special_tokens(tokenizers_by_kind) -> None:
    spacing = {kind for kind, t in tokenizers_by_kind.items() if t.spaces_special_tokens}
    assert spacing == {"word_piece", "no_decoder"}
    for kind, tokenizer in tokenizers_by_kind.items():
        ids = sorted(tokenizer.special_token_ids)[:2] * 2
        texts = [tokenizer.special_token_texts[i] for i in ids]
        shown = tokenizer.decode(ids, skip_special_tokens=False)
        assert shown == (" " if kind in spacing else "").join(texts)
