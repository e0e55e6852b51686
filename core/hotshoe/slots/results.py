"""What a call of a slot's operation returns: shapes and types, of its specification. Free of torch.

Core compares them once, in the first step after building; see `hotshoe.runner.checks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotshoe.slots.quant_spec import QuantSpec
from hotshoe.slots.specs import (
    AddNormSpec,
    AttentionSpec,
    GatedActivationSpec,
    LinearSpec,
    MlaAttentionSpec,
    NormSpec,
    SparseMlaSpec,
)

#: Element types of quantized activations; others are not compared.
_STORED = {"int8": "int8"}


@dataclass(frozen=True, slots=True)
class Result:
    """One tensor that a call returns; of type "" where any will do."""

    shape: tuple[int, ...]
    dtype: str


def of_attention(spec: AttentionSpec, rows: int) -> tuple[Result, ...]:
    """Describe a row of all heads' values for each token."""
    return (Result((rows, spec.num_heads * spec.value_dim), spec.dtype),)


def of_latent_attention(spec: MlaAttentionSpec, rows: int) -> tuple[Result, ...]:
    """Describe a row of all heads' values for each token."""
    return (Result((rows, spec.num_heads * spec.v_dim), spec.dtype),)


def of_sparse_attention(spec: SparseMlaSpec, rows: int) -> tuple[Result, ...]:
    """Describe a row of all heads' values for each token."""
    return of_latent_attention(spec.attention, rows)


def of_queries(spec: Any, rows: int) -> tuple[Result, ...]:
    """Describe the queries that a cache writer hands on."""
    return (Result((rows, spec.num_heads, spec.head_dim), spec.dtype),)


def of_linear(spec: LinearSpec, rows: int) -> tuple[Result, ...]:
    """Describe a matrix product."""
    return (Result((rows, spec.out_features), spec.out_dtype or spec.dtype),)


def of_block(spec: Any, rows: int) -> tuple[Result, ...]:
    """Describe what a whole block makes, by its second matrix."""
    return (Result((rows, spec.down.out_features), spec.dtype),)


def of_norm(spec: NormSpec, rows: int) -> tuple[Result, ...]:
    """Describe normed rows."""
    return _rows(rows, spec.hidden_size, spec.dtype, spec.quant)


def of_add_norm(spec: AddNormSpec, rows: int) -> tuple[Result, ...]:
    """Describe normed rows, then the new residual."""
    normed = _rows(rows, spec.hidden_size, spec.dtype, spec.quant)
    return (*normed, Result((rows, spec.hidden_size), spec.dtype))


def of_activation(spec: GatedActivationSpec, rows: int) -> tuple[Result, ...]:
    """Describe activated rows."""
    return _rows(rows, spec.size, spec.dtype, spec.quant)


def _rows(rows: int, size: int, dtype: str, quant: QuantSpec | None) -> tuple[Result, ...]:
    if quant is None:
        return (Result((rows, size), dtype),)
    values = Result((rows, size), _STORED.get(quant.format, ""))
    scales = (rows, -(-size // quant.group_size)) if quant.group_size else (rows,)
    return (values, Result(scales, "float32"))
