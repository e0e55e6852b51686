"""What a caller may ask the engine to continue: text or token ids."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text to be tokenised. `cache_salt` separates prefix-cache tenants."""

    text: str
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class TokensPrompt:
    """Token ids to be used as they are. `cache_salt` separates prefix-cache tenants."""

    token_ids: Sequence[int]
    cache_salt: str | None = None


Prompt = str | TextPrompt | TokensPrompt
