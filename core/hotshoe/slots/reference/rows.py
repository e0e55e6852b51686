"""Rows of a cache that has one for each token, made of numbers and read again.

Used by references and conversions; a platform's kernels do the same to rows where they lie.
"""

import torch
from torch import Tensor

from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.kv import rounded, scale_of
from hotshoe.types.rows import ALIGNED, RowForm


def packed(form: RowForm, values: Tensor) -> Tensor:
    """Return values [n, numbers + exact] as rows [n, width]; a row that holds NaN keeps it."""
    if not form.quantized:
        return values.to(torch_dtype(form.kv_dtype))
    numbers, exact = torch.split(values.float(), [form.numbers, form.exact], dim=-1)
    scale = scale_of(numbers, form.kv_dtype)
    parts = (
        rounded(numbers / scale, form.kv_dtype),
        scale.repeat(1, ALIGNED // 4),
        exact.to(torch_dtype(form.dtype)),
    )
    return torch.cat([part.view(torch.uint8) for part in parts], dim=-1)


def unpacked(form: RowForm, rows: Tensor) -> Tensor:
    """Return what rows [..., width] stand for [..., numbers + exact] float32."""
    if not form.quantized:
        return rows.float()
    numbers = rows[..., : form.numbers].view(torch_dtype(form.kv_dtype)).float()
    scale = rows[..., form.numbers : form.numbers + 4].view(torch.float32)
    exact = rows[..., form.exact_at :]
    if not form.exact:
        return numbers * scale
    return torch.cat((numbers * scale, exact.view(torch_dtype(form.dtype)).float()), dim=-1)


def held(form: RowForm) -> torch.dtype:
    """Return the type of the cache's tensor."""
    return torch.uint8 if form.quantized else torch_dtype(form.kv_dtype)
