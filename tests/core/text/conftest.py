"""Small tokenizers of every kind that language models use, trained on the spot."""

import json

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from hotshoe.text import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, doesn't it? I'm sure they've seen it.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "素早い茶色の狐が怠け者の犬を飛び越える",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))  # 12345 🙂👩‍👩‍👧 naïve café",
] * 3
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def byte_level():
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("hello world", normalized=False), AddedToken("日本語")])
    return backend


def _byte_fallback_vocabulary():
    words = ["▁", "▁the", "▁quick", "quick", "ing", "▁▁", "▁\n", "ä", "▁日", "本"]
    letters = [chr(c) for c in range(33, 127)]
    tokens = ["<unk>", *SPECIAL, *(f"<0x{b:02X}>" for b in range(256)), *letters, *words]
    return {token: i for i, token in enumerate(dict.fromkeys(tokens))}


def byte_fallback():
    """As in Llama 2: spaces become a mark by a normalizer, and text starts with one."""
    backend = Backend(
        models.BPE(_byte_fallback_vocabulary(), [], unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(SPECIAL)
    return backend


def metaspace():
    """Byte fallback and a Metaspace decoder."""
    backend = Backend(
        models.BPE(_byte_fallback_vocabulary(), [], unk_token="<unk>", byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    backend.add_special_tokens(SPECIAL)
    return backend


def unigram():
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=[*SPECIAL, "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def word_piece():
    backend = Backend(models.WordPiece(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=[*SPECIAL, "<unk>"], show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def no_decoder():
    backend = Backend(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(SPECIAL)
    return backend


KINDS = {
    f.__name__: f for f in (byte_level, byte_fallback, metaspace, unigram, word_piece, no_decoder)
}
CONFIG = {
    "bos_token": "<s>",
    "eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "special": True},
    "pad_token": None,
    "tokenizer_class": "PreTrainedTokenizerFast",
}


@pytest.fixture(scope="session")
def make_directory(tmp_path_factory):
    """Write a model directory's tokenizer files."""

    def make(kind="byte_level", config=None, **files):
        directory = tmp_path_factory.mktemp(kind)
        KINDS[kind]().save(str(directory / "tokenizer.json"))
        files["tokenizer_config.json"] = CONFIG | (config or {})
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (directory / name).write_text(text, encoding="utf-8")
        return directory

    return make


@pytest.fixture(scope="session")
def tokenizers_by_kind(make_directory):
    return {kind: Tokenizer.load(make_directory(kind)) for kind in KINDS}


@pytest.fixture(scope="session")
def byte_level_tokenizer(tokenizers_by_kind):
    return tokenizers_by_kind["byte_level"]
