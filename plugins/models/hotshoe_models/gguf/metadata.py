"""Asks a GGUF file's metadata for values of a kind; every complaint names file and key.

Keys of the architecture are asked for without its name: "block_count" is "llama.block_count".
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from typing import Any

from hotshoe.errors import CheckpointError
from hotshoe_models.gguf.header import Header, TensorInfo

#: Rotary factors: one for each pair of channels.
MAX_FLOATS = 4096
#: Far more than any model has.
MAX_LAYERS = 4096
#: Texts of tokens that end a turn or a text, where files name only one of them.
ENDINGS = frozenset(
    "<|eot_id|> <|eom_id|> <|end_of_text|> <|im_end|> <|endoftext|> <|end|> <end_of_turn> "
    "<|eot|> <|eom|> <turn|>".split()
)
#: Those of gpt-oss, by which its vocabulary is known; "<|end|>" ends one message of a turn.
HARMONY, END_OF_MESSAGE = frozenset(("<|return|>", "<|call|>")), "<|end|>"
CONTROL = 3
#: Types of plain numbers, and their names in config.json.
PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Metadata:
    """What the first file of a model says, and the tensors of all.

    Attributes:
        arch: As `general.architecture` has it.
        tensors: By their names in the files.
    """

    def __init__(self, headers: list[Header]) -> None:
        self._headers, self._values = headers, headers[0].values
        self.tensors: dict[str, TensorInfo] = {}
        for header in headers:
            if twice := set(self.tensors) & set(header.tensors):
                raise header.bad(f"another part of the model holds {min(twice)[:200]}, too")
            self.tensors |= header.tensors
        self.arch = self.whole_text("general.architecture")

    def refuse(self, key: str, why: str) -> CheckpointError:
        """Return the error for a value that cannot be served."""
        return CheckpointError(f"{self._headers[0].path}: {key} is {self._shown(key)}, {why}")

    def _shown(self, key: str) -> str:
        value = self._values.get(key)
        return f"{value!r:.100}" if key in self._values else "missing"

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the architecture."""
        return self._values.get(f"{self.arch}.{key}", default)

    def whole(self, key: str) -> Any:
        """Return the value of a key that is spelled out; None where there is none."""
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive integer; 0 only as a default. A list must repeat one.

        Raises:
            CheckpointError: It is missing, or something else.
        """
        value = self.get(key)
        if isinstance(value, list) and value and all(entry == value[0] for entry in value):
            value = value[0]
        if (value is None and default is not None) or value == 0 == default:
            return default if default is not None else 0
        if type(value) is not int or value <= 0:
            raise self.refuse(f"{self.arch}.{key}", "but must be a positive integer")
        return value

    def sizes(self, key: str) -> list[int]:
        """Return an integer of at least 0 for each layer, of which one is more.

        Raises:
            CheckpointError: They are missing, or something else.
        """
        found, layers = self.get(key), self.integer("block_count")
        found = found if isinstance(found, list) else [found] * min(layers, MAX_LAYERS)
        fits = len(found) == layers and all(type(size) is int and size >= 0 for size in found)
        if not fits or not any(found):
            raise self.refuse(f"{self.arch}.{key}", f"but must be sizes of {layers} layers")
        return found

    def least(self, key: str, default: int | None = None) -> int:
        """Return the least of the sizes of layers that have one.

        Raises:
            CheckpointError: They are missing, or something else.
        """
        if default is not None and self.get(key) is None:
            return default
        return min(size for size in self.sizes(key) if size)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number.

        Raises:
            CheckpointError: It is missing, or something else.
        """
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
            raise self.refuse(f"{self.arch}.{key}", "but must be a number")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """Return text of the architecture.

        Raises:
            CheckpointError: It is missing, or something else.
        """
        return self.whole_text(f"{self.arch}.{key}", default)

    def whole_text(self, key: str, default: str | None = None) -> str:
        """Return text, by the whole key.

        Raises:
            CheckpointError: It is missing, or something else.
        """
        value = self._values.get(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, "but must be text")
        return value

    def strings(self, key: str) -> list[str]:
        """Return a list of texts, by the whole key.

        Raises:
            CheckpointError: It is missing, or something else.
        """
        value = self._values.get(key)
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self.refuse(key, "but must be a list of texts")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean, by the whole key.

        Raises:
            CheckpointError: It is something else.
        """
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "but must be true or false")
        return value

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor that must be there.

        Raises:
            CheckpointError: It is not.
        """
        if name not in self.tensors:
            raise CheckpointError(f"{self._headers[0].path} lacks the tensor {name}")
        return self.tensors[name].shape

    def floats(self, name: str) -> list[float]:
        """Return the values of a small tensor, none of one that is not there.

        Raises:
            CheckpointError: It is large, or not of type F32.
        """
        for header in self._headers:
            if (info := header.tensors.get(name)) is None:
                continue
            count = math.prod(info.shape)
            if info.type.name != "F32" or count > MAX_FLOATS:
                raise header.bad(f"{name} has {count} values of type {info.type.name}")
            return list(struct.unpack_from(f"<{count}f", header.map, info.begin))
        return []

    def dtype(self) -> str:
        """Return the type of most numbers of matrices; converters keep small ones in F32.

        Files of packed blocks do not say in which type the model was trained.
        """
        counts: Counter[str] = Counter()
        for info in self.tensors.values():
            if len(info.shape) > 1:
                counts[info.type.name] += math.prod(info.shape)
        if not counts or not counts.keys() <= PLAIN.keys():
            return "bfloat16"
        return PLAIN[counts.most_common(1)[0][0]]

    def token_id(self, role: str) -> int | None:
        """Return the token of a role, such as "bos"; None where there is none.

        Raises:
            CheckpointError: It is no id of the vocabulary.
        """
        key = f"tokenizer.ggml.{role}_token_id"
        value = self._values.get(key)
        if value is not None and (type(value) is not int or not 0 <= value < 2**31):
            raise self.refuse(key, "but must be the number of a token")
        return value

    def ending_ids(self) -> list[int]:
        """Return the tokens that end a text: those named so, and control tokens known as such.

        A turn of gpt-oss has several messages, so the end of one does not count there.
        """
        named = [self.token_id(role) for role in ("eos", "eot", "eom")]
        tokens = self._values.get("tokenizer.ggml.tokens")
        kinds = self._values.get("tokenizer.ggml.token_type")
        found: list[int] = []
        if isinstance(tokens, list) and isinstance(kinds, list):
            pairs = enumerate(zip(tokens, kinds, strict=False))
            control = {str(text): i for i, (text, kind) in pairs if kind == CONTROL}
            known = ENDINGS
            if control.keys() >= HARMONY:
                known = (ENDINGS | HARMONY) - {END_OF_MESSAGE}
                named = [i for i in named if i != control.get(END_OF_MESSAGE)]
            found = [i for text, i in control.items() if text in known]
        return list(dict.fromkeys([i for i in named if i is not None] + found))


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond any float
        return False
