"""Mistral's tokenizers, `tekken.json`: tokens by rank, behind special ones.

The file has the regular expression that cuts text into words, so nothing has to be known of its
release. What is made of it is what tokenizer.json would hold.
Source: the library mistral-common.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotshoe.errors import CheckpointError
from hotshoe.models.config import read_json
from hotshoe.models.files import MIB
from hotshoe.models.model_file import TokenizerParts
from hotshoe.text.tiktoken_file import letters_of_bytes, merges_of

FILE = "tekken.json"
MAX_BYTES = 128 * MIB
#: The special tokens of files that do not name them, in order.
OLDER = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]"),
)
ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def tekken_parts(path: Path) -> TokenizerParts:
    """Read a tekken.json.

    Raises:
        CheckpointError: It is missing or malformed.
    """
    pattern, special, ranks = _read(path)
    made = json.dumps(_described(pattern, special, ranks)).encode()
    return TokenizerParts(made, _named(special))


def tekken_named(path: Path) -> dict[str, str]:
    """Return the named tokens of a tekken.json, such as {"bos_token": "<s>"}.

    Raises:
        CheckpointError: It is missing or malformed.
    """
    return _named(_read(path)[1])


def _named(special: list[str]) -> dict[str, str]:
    return {role: token for role, token in ROLES.items() if token in special}


def _read(path: Path) -> tuple[str, list[str], dict[bytes, int]]:
    """Return the expression that cuts words, the special tokens by id, and the others by rank."""
    found = read_json(path, MAX_BYTES)
    config = found.get("config")
    try:
        if not isinstance(config, Mapping) or not isinstance(config["pattern"], str):
            raise ValueError("config has no pattern")
        special = _special(found.get("special_tokens"), config["default_num_special_tokens"])
        count = config["default_vocab_size"] - len(special)
        ranks = _ranks(found["vocab"], count)
    except (KeyError, TypeError, ValueError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"{path} cannot be read: {why}; fetch it again") from None
    return config["pattern"], special, ranks


def _special(listed: Any, count: int) -> list[str]:
    """Return the special tokens by id; those without a name get one."""
    if listed is None:
        listed = [{"rank": rank, "token_str": token} for rank, token in enumerate(OLDER)]
    if type(count) is not int or not len(listed) <= count <= 100_000:
        raise ValueError(f"there are {len(listed)} special tokens, but it counts {count!r}")
    tokens = [f"<SPECIAL_{rank}>" for rank in range(count)]
    for one in listed:
        rank, token = one["rank"], one["token_str"]
        if type(rank) is not int or not 0 <= rank < count or not isinstance(token, str):
            raise ValueError(f"{one!r:.100} is no special token")
        tokens[rank] = token
    if len(set(tokens)) != count:
        raise ValueError("two special tokens have the same text")
    return tokens


def _ranks(vocab: Any, count: int) -> dict[bytes, int]:
    """Return the first tokens by rank, from 0 on without gaps."""
    if type(count) is not int or count < 256 or len(vocab) < count:
        raise ValueError(f"it has {len(vocab)} tokens, and needs {count}, at least all bytes")
    found: dict[bytes, int] = {}
    for number, one in enumerate(vocab[:count]):
        token = base64.b64decode(one["token_bytes"], validate=True)
        if one["rank"] != number or not token or token in found:
            raise ValueError(f"token {number} is {one!r:.100}, no new one of this rank")
        found[token] = number
    if missing := {bytes([byte]) for byte in range(256)} - found.keys():
        raise ValueError(f"it lacks byte {min(missing)[0]}")
    return found


def _described(pattern: str, special: list[str], ranks: Mapping[bytes, int]) -> dict[str, Any]:
    """Return what tokenizer.json would hold."""
    letters = letters_of_bytes()
    written = {token: "".join(letters[byte] for byte in token) for token in ranks}
    vocab = {token: number for number, token in enumerate(special)}
    vocab |= {written[token]: len(special) + rank for token, rank in ranks.items()}
    merges = [[written[left], written[right]] for left, right in merges_of(ranks)]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    first = [{"SpecialToken": {"id": "<s>", "type_id": 0}}] if "<s>" in vocab else []
    one = [*first, {"Sequence": {"id": "A", "type_id": 0}}]
    ids = {"<s>": {"id": "<s>", "ids": [vocab["<s>"]], "tokens": ["<s>"]}} if first else {}
    split = {"pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": token, **plain, "special": True}
            for number, token in enumerate(special)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", **split}, BYTES]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": one,
            "pair": [*one, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": ids,
        },
        "decoder": BYTES,
        "model": {"type": "BPE", "ignore_merges": True, "vocab": vocab, "merges": merges},
    }
