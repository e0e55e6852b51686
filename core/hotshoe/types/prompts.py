"""What a caller may ask the engine to continue: text, token ids or embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text to be tokenized. `cache_salt` separates prefix-cache tenants."""

    text: str
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class TokensPrompt:
    """Token ids to be used as they are. `cache_salt` separates prefix-cache tenants."""

    token_ids: Sequence[int]
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EmbedsPrompt:
    """Rows to be used in place of those of the embedding's table.

    Attributes:
        embeds: [num_tokens, hidden_size], an array or tensor of floating point in host memory,
            finite. The model scales it as it scales rows of its table.
        cache_salt: Separates prefix-cache tenants.
    """

    embeds: Any
    cache_salt: str | None = None


Prompt = str | TextPrompt | TokensPrompt | EmbedsPrompt
