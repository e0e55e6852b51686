"""Latent attention in GGUF files: one matrix of keys and values, which newer files have in two.

Those hold keys [heads, latent_dim, nope_dim], turned, and values [heads, v_dim, latent_dim]; the
checkpoint had both in one matrix, head by head. Older files still do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.loader.sources import Stored

#: Ends of names: of the matrix, and of its halves.
WHOLE, KEYS, VALUES = (f"self_attn.{part}_b_proj.weight" for part in ("kv", "k", "v"))


class WholeLatents:
    """A source that has the matrix where its files have the halves.

    Args:
        source: The files'.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        found = list(source.names())
        pairs = {n.removesuffix(KEYS) + WHOLE: n for n in found if n.endswith(KEYS)}
        whole = {w: n for w, n in pairs.items() if {*_halves(n)} <= {*found}}
        needless = {half for keys in whole.values() for half in _halves(keys)}
        #: By the name of the matrix, where files do not have that as well.
        self._joined = {w: n for w, n in whole.items() if w not in found}
        self._names = [n for n in found if n not in needless] + list(self._joined)

    def names(self) -> Iterable[str]:
        """Return names as the checkpoint had them, those of joined matrices last."""
        return self._names

    def tensor(self, name: str) -> Tensor:
        """Return a tensor.

        Raises:
            CheckpointError: Halves do not fit each other.
        """
        if name not in self._joined:
            found: Tensor = self._source.tensor(name)
            return found
        keys, values = (self._source.tensor(half) for half in _halves(self._joined[name]))
        if keys.dim() != 3 or values.dim() != 3 or (len(keys), keys.shape[1]) != values.shape[::2]:
            shapes = f"{list(keys.shape)} and {list(values.shape)}"
            raise CheckpointError(f"{name}: keys and values of latents do not fit: {shapes}")
        return torch.cat((keys.transpose(1, 2).to(values.dtype), values), 1).flatten(0, 1)

    def taken(self, name: str) -> None:
        """Let go of what it was made of."""
        for part in _halves(self._joined[name]) if name in self._joined else (name,):
            self._source.taken(part)

    def stored(self, name: str) -> Stored:
        """Return type and size in the file."""
        if name not in self._joined:
            found: Stored = self._source.stored(name)
            return found
        keys, values = (self._source.stored(half) for half in _halves(self._joined[name]))
        return Stored(keys.type, keys.nbytes + values.nbytes)


def _halves(keys: str) -> tuple[str, str]:
    """Return the names of keys and values."""
    return keys, keys.removesuffix(KEYS) + VALUES
