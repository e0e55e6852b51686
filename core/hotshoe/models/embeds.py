"""Prompt embeddings as callers bring them, checked and made the bytes that workers take."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotshoe.errors import RequestError


def embeds_bytes(embeds: Any, hidden_size: int) -> tuple[bytes, int]:
    """Return rows as little-endian float32, and how many there are.

    Args:
        embeds: [num_tokens, hidden_size], an array or a tensor in host memory.
        hidden_size: The model's.

    Raises:
        RequestError: It is no such array, or holds NaN or infinity.
    """
    try:
        if hasattr(embeds, "detach"):  # a tensor; types that NumPy lacks become float32
            embeds = embeds.detach().float().numpy()
        rows = np.asarray(embeds)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RequestError(f"prompt embeddings are no array: {error}", "prompt") from None
    if rows.ndim != 2 or rows.shape[1] != hidden_size or rows.dtype.kind != "f":
        raise RequestError(
            f"prompt embeddings are [num_tokens, {hidden_size}] of floating point for this model, "
            f"not {list(rows.shape)} of {rows.dtype}",
            "prompt",
        )
    with np.errstate(over="ignore"):
        rows = rows.astype("<f4")
    if not np.isfinite(rows).all():
        raise RequestError(
            "prompt embeddings hold NaN, infinity or numbers beyond float32", "prompt"
        )
    return rows.tobytes(), len(rows)
