"""What tokens add to a text, for every kind of tokenizer."""

from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models

from hotshoe.grammar.vocabulary import vocabulary_of
from hotshoe.text.tokenizer import Tokenizer


def test_byte_level(model_dir: Path) -> None:
    vocabulary = vocabulary_of(Tokenizer.load(model_dir), 300, (255, 7, 7, 900))
    assert vocabulary.ending_ids == (7, 255)
    assert vocabulary.tokens[7] == vocabulary.tokens[255] == b""
    spelt = [token for token in vocabulary.tokens if token]
    assert len(spelt) == 254
    assert len(set(spelt)) == 254
    assert vocabulary.tokens[256:] == (b"",) * 44
    assert vocabulary.num_words == 10


def test_byte_fallback_and_added_tokens() -> None:
    pieces = ["<unk>", "</s>", "<0x0A>", "<0xE6>", "▁a", "b"]
    backend = tokenizers.Tokenizer(
        models.BPE({p: i for i, p in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.add_special_tokens(["</s>", "<|tool|>"])
    backend.add_tokens([AddedToken("<think>")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    vocabulary = vocabulary_of(Tokenizer(backend, {"eos_token": "</s>"}, {}), 8, (1,))
    assert vocabulary.tokens == (b"<unk>", b"", b"\n", b"\xe6", b" a", b"b", b"", b"<think>")
    assert vocabulary.special == {"</s>": 1, "<|tool|>": 6}
