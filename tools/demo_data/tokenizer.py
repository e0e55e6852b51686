"""Train the byte-level BPE tokenizer and write it in Hugging Face form.

Words are segmented alike with and without a space before them: the BPE is trained on words
without their space, and merges of the space with a word's first piece come last.  A small model
can then copy a word from ` word` to `"word` token by token.  Digits are single tokens, there is no
normaliser, and every byte has a token, so any text survives a round trip.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from demo_data.chat import CHAT_TEMPLATE

VOCAB_SIZE = 8192
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, TURN_START, TURN_END)
MARKUP = (
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>",
    "<think>", "</think>",
)  # fmt: skip
MAX_LENGTH = 2048

_CONTRACTION = r"'(?:[sdmt]|ll|ve|re)(?!\p{L})"
_REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERN = _CONTRACTION + r"| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _REST
_UNSPACED = _CONTRACTION + r"|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+[\r\n]*" + _REST
_SPACE = "\u0120"


def _splitter(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _build(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    tokenizer = Tokenizer(BPE(vocab, merges))
    tokenizer.pre_tokenizer = _splitter(_PATTERN)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in MARKUP])
    return tokenizer


def train(texts: list[str], unspaced_share: float = 0.66) -> Tokenizer:
    """Train on texts; `unspaced_share` of the vocabulary are pieces without a leading space.

    Args:
        texts: Training texts, held in memory.
        unspaced_share: The rest of the vocabulary are the most frequent spaced first pieces.
    """
    room = VOCAB_SIZE - len(SPECIAL) - len(MARKUP)
    base = Tokenizer(BPE())
    base.pre_tokenizer = _splitter(_UNSPACED)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=int(room * unspaced_share), initial_alphabet=alphabet, show_progress=False
    )
    base.train_from_iterator(texts, trainer)
    model = json.loads(base.to_str())["model"]
    merges = [(left, right) for left, right in model["merges"]]
    vocab: dict[str, int] = model["vocab"]

    spaced = _build(dict(vocab), merges)
    first_pieces: Counter[str] = Counter()
    for encoding in spaced.encode_batch(texts[::4]):
        tokens = encoding.tokens
        for space, piece in itertools.pairwise(tokens):
            if (
                space == _SPACE
                and not piece[0].isdigit()
                and piece[0] not in (_SPACE, "\u010a", "<")
            ):
                first_pieces[piece] += 1
    for piece, _ in first_pieces.most_common():
        if len(vocab) == room:
            break
        joined = _SPACE + piece
        if joined not in vocab and piece in vocab:
            vocab[joined] = len(vocab)
            merges.append((_SPACE, piece))
    return _build(vocab, merges)


def config() -> dict[str, Any]:
    """Return the contents of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LENGTH,
        "chat_template": CHAT_TEMPLATE,
    }


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config(), indent=2) + "\n")


def token_ids(tokenizer: Tokenizer, texts: Iterable[str]) -> list[list[int]]:
    """Encode texts in one batch."""
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]
