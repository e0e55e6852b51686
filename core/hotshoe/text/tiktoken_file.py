"""Tokenizers that are a list of tokens by rank, the form of the library tiktoken.

A line of the file has a token in base64 and its rank, which is its id. How text is cut into words
is code of the publisher, which is never run: `PATTERNS` has it for the classes that are known.
Used by `tokenizer_files`, and in part by `tekken_file`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.errors import CheckpointError
from hotshoe.foreign import foreign
from hotshoe.models.files import MIB, read_file

if TYPE_CHECKING:
    import tokenizers

FILE = "tiktoken.model"
MAX_BYTES = 64 * MIB
#: Ids behind those of the file, for tokens that are no text.
RESERVED = 256
_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER, _LOWER = (
    rf"[{kinds}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for kinds in (r"\p{Lu}\p{Lt}", r"\p{Ll}")
)
#: Source: the tokenizers of Kimi K2 and its successors.
_KIMI = (
    r"[\p{Han}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
)
#: Regular expressions of words, by the class that `auto_map` of tokenizer_config.json names.
PATTERNS = {"tokenization_kimi.TikTokenTokenizer": "|".join(_KIMI)}


def tiktoken_backend(directory: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer | None:
    """Make the tokenizer of a model directory; None if it has no such file, or of another class.

    Args:
        directory: The model directory.
        config: Of tokenizer_config.json.

    Raises:
        CheckpointError: The file is malformed.
    """
    pattern, path = _pattern(config), directory / FILE
    if pattern is None or not path.exists():
        return None
    import tokenizers
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

    ranks, letters = _ranks(path), letters_of_bytes()
    written = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = [(written[left], written[right]) for left, right in merges_of(ranks)]
    with foreign(lambda e: CheckpointError(f"{path} is unusable: {e}")):
        vocab = {written[token]: rank for token, rank in ranks.items()}
        backend = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
        words = pre_tokenizers.Split(Regex(pattern), "isolated")
        octets = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([words, octets])
        backend.decoder = decoders.ByteLevel()
        for text, special in _added(config, len(ranks)):
            token = AddedToken(text, normalized=False, special=special)
            (backend.add_special_tokens if special else backend.add_tokens)([token])
    return backend


def _pattern(config: Mapping[str, Any]) -> str | None:
    """Return how a class cuts text into words, if it is known."""
    found = config.get("auto_map")
    named = found.get("AutoTokenizer") if isinstance(found, Mapping) else None
    for name in named if isinstance(named, list) else [named]:
        if isinstance(name, str) and (known := PATTERNS.get(name.rpartition("--")[2])):
            return known
    return None


def _ranks(path: Path) -> dict[bytes, int]:
    """Return the tokens of a file by rank, from 0 on without gaps.

    Raises:
        CheckpointError: It is malformed, or lacks a byte.
    """
    found: dict[bytes, int] = {}
    for number, line in enumerate(read_file(path, MAX_BYTES).splitlines()):
        encoded, _, rank = line.partition(b" ")
        try:
            token, value = base64.b64decode(encoded, validate=True), int(rank)
        except ValueError:
            value = -1
        if value != number or not token or token in found:
            raise CheckpointError(
                f"{path}: line {number + 1} is no new token in base64 with rank {number}; fetch "
                "the file again"
            )
        found[token] = value
    if missing := {bytes([byte]) for byte in range(256)} - found.keys():
        raise CheckpointError(f"{path} lacks byte {min(missing)[0]}; fetch the file again")
    return found


def merges_of(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield pairs of tokens that make a token, in the order in which they are joined."""
    for token in ranks:  # in the order of ranks
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = [(left, right) for left, right in cuts if left in ranks and right in ranks]
        yield from sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def letters_of_bytes() -> list[str]:
    """Return the letter that stands for each byte in the vocabulary of `tokenizers`."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def _added(config: Mapping[str, Any], first: int) -> Iterator[tuple[str, bool]]:
    """Yield the tokens behind those of the file, and whether each is special."""
    found = config.get("added_tokens_decoder")
    known = found if isinstance(found, Mapping) else {}
    for number in range(first, first + RESERVED):
        token = known.get(str(number))
        if isinstance(token, Mapping) and isinstance(token.get("content"), str):
            yield token["content"], token.get("special") is not False
        else:
            yield f"<|reserved_token_{number}|>", True
