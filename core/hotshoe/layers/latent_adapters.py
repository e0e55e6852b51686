"""Adapters of the matrix of latent attention, of which no operation makes a product of its own.

Cached latents do not depend on an adapter, as the matrix is applied to what the cache holds. The
adapter of a query's token counts: B's rows of a head's U take q to ranks, and A takes these to
latents; A takes averages of latents to ranks, and B's rows of V take these to values. Slot `lora`
multiplies all four times, with an identity in the place of the other half.

Source: Low-rank adaptation, arXiv:2106.09685; the absorbed form, DeepSeek-V2, arXiv:2405.04434.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from hotshoe.layers.adapter_ranks import check_factors, refuse_other_forms
from hotshoe.layers.adapter_tokens import Heads, HeadTokens
from hotshoe.layers.adapters import AdapterTable, Changes, Factors
from hotshoe.layers.context import BuildContext
from hotshoe.layers.formats import Share
from hotshoe.layers.landing import Piece
from hotshoe.layers.magnitudes import Gain
from hotshoe.slots import LatentAdapters, LoraOp, LoraSpec, MlaAttentionSpec


class AdaptedLatents:
    """What adapters make of one layer's U and V: this rank's heads. It is `LatentAdapters`.

    Args:
        ctx: The build context.
        table: Who has adapters.
        matrix: Name, rows of the whole matrix, and this rank's part of them.
        spec: This rank's heads.
        scale: Returns a factor on the matrix.

    Raises:
        MemoryLimitError: All places of adapters together need more than the device has.
    """

    def __init__(
        self,
        ctx: BuildContext,
        table: AdapterTable,
        matrix: tuple[str, int, Share],
        spec: MlaAttentionSpec,
        scale: Callable[[], float],
    ) -> None:
        self._table, self._matrix, self._spec, self._scale = table, matrix, spec, scale
        rank, places, heads = table.limits.max_rank, table.limits.max_adapters, spec.num_heads
        device, dtype = ctx.device, ctx.torch_dtype
        rows = spec.nope_dim + spec.v_dim
        numbers = rank * (spec.latent_dim + heads * rows)
        landing = table.land(numbers, dtype, ctx.selector.judged.device)
        shared = 0 if heads in table.heads else places * heads * rank * rank
        nbytes = (places * numbers + shared) * dtype.itemsize + landing
        table.take(nbytes, ctx.selector.facts)
        if shared:
            identity = torch.eye(rank, dtype=dtype, device=device).repeat(places * heads, 1, 1)
            table.heads[heads] = Heads(heads, places, identity)
        self._heads, self._is_first = table.heads[heads], bool(shared)
        self._tokens: HeadTokens | None = None

        def empty(*shape: int) -> Tensor:
            return torch.empty(places, *shape, dtype=dtype, device=device)

        self._a = empty(rank, spec.latent_dim)
        self._keys, self._values = empty(heads, rank, spec.nope_dim), empty(heads, rank, spec.v_dim)
        table.device.write_later(self._a, self._keys, self._values)

        def product(inputs: int, outputs: int, count: int) -> LoraOp:
            asked = LoraSpec(inputs, outputs, rank, count, ctx.dtype)
            chosen: LoraOp = ctx.selector.choose("lora", asked)
            return chosen

        self._of_q = product(spec.nope_dim, rank, places * heads)
        self._to_latents = product(rank, spec.latent_dim, places)
        self._of_latents = product(spec.latent_dim, rank, places)
        self._to_values = product(rank, spec.v_dim, places * heads)
        ctx.weight_bytes.append(lambda: nbytes)
        table.weights = ctx.weights
        table.layers[matrix[0]] = (self, 0)
        table.changes[matrix[0]] = Changes.LATENTS

    def of(self, num_tokens: int) -> LatentAdapters | None:
        """Return what the step's adapters make, None where they change no such matrix."""
        if not self._table.uses:
            return None
        use = self._table.uses[num_tokens]
        if use.changes < Changes.LATENTS:
            return None
        self._tokens = self._heads.of(use.tokens, self._is_first)
        return self

    def widen(self, wide: Tensor, q: Tensor) -> None:
        """See `LatentAdapters.widen`."""
        assert self._tokens is not None
        x = q.flatten(0, 1)[:, : self._spec.nope_dim]
        low = x.new_zeros(len(x), self._a.shape[1])
        one = self._heads.identity
        self._of_q(low, x, self._keys.flatten(0, 1), one, self._tokens.by_head)
        one = one[: len(self._a)]
        self._to_latents(wide.view(len(x), -1), low, one, self._a, self._tokens.by_adapter)

    def values(self, out: Tensor, mixed: Tensor) -> None:
        """See `LatentAdapters.values`."""
        assert self._tokens is not None
        x = mixed.flatten(0, 1)
        low = x.new_zeros(len(x), self._a.shape[1])
        one = self._heads.identity
        self._of_latents(low, x, self._a, one[: len(self._a)], self._tokens.by_adapter)
        values = self._values.flatten(0, 1)
        self._to_values(out.view(len(x), -1), low, one, values, self._tokens.by_head)

    def check(self, name: str, index: int, factors: Factors, max_rank: int) -> None:
        """Refuse factors of another shape, and what is not built.

        Raises:
            CheckpointError: They do not fit the matrix, their rank is above the limit, or they are
                none.
        """
        refuse_other_forms(name, factors)
        check_factors(name, factors, (self._spec.latent_dim, self._matrix[1]), max_rank)

    def host_bytes(self, index: int, factors: Factors) -> int:
        """Return the bytes that the host keeps: those of B have the highest rank."""
        numbers = self._keys[0].numel() + self._values[0].numel()
        return (numbers + factors.a.numel()) * self._a.itemsize

    def own_part(self, index: int, factors: Factors) -> Factors:
        """Return copies of A and of this rank's part of B, in the model's type; B is scaled."""
        rows = self._matrix[2].rows
        b = torch.cat([factors.b[part] for part in rows]).float() * factors.scale * self._scale()
        a, b = (t.to(self._a.dtype, copy=True) for t in (factors.a, b))
        return Factors(a, b)

    def pieces(self, index: int, factors: Factors) -> Sequence[Piece]:
        """Return where factors lie in all places, and their numbers."""
        spec, rank = self._spec, len(factors.a)
        b = factors.b.view(spec.num_heads, spec.nope_dim + spec.v_dim, rank).transpose(1, 2)
        found = [(self._a[:, :rank].flatten(1), factors.a.flatten())]
        parts = torch.split(b, [spec.nope_dim, spec.v_dim], dim=2)
        for held, part in zip((self._keys, self._values), parts, strict=True):
            numbers = part.new_zeros(held.shape[1:])
            numbers[:, :rank] = part
            found.append((held.flatten(1), numbers.flatten()))
        return found

    def measure(self, parts: Mapping[int, Factors]) -> dict[int, Gain]:
        """Measure nothing: there are no magnitudes."""
        return {}

    def settle(self) -> None:
        """Keep what is here, which does not depend on weights."""

    def put(self, place: int, index: int, factors: Factors | None, gain: Gain | None) -> None:
        """Take nothing: all comes by `pieces`."""
