"""Embedding gather: exact copies, scales, strides and ids that are out of range."""

from types import ModuleType

import pytest
import torch

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def gather(
    native: ModuleType, table: torch.Tensor, ids: torch.Tensor, scale: float = 1.0
) -> torch.Tensor:
    out = torch.full((len(ids), table.shape[1] + 2), torch.nan, dtype=table.dtype)
    native.embedding(
        *(t.data_ptr() for t in (out, table, ids)),
        *(len(ids), table.shape[1], len(table), out.stride(0), table.stride(0)),
        *(scale, ids.dtype == torch.int64, CODES[table.dtype]),
    )
    assert out[:, table.shape[1] :].isnan().all()
    return out[:, : table.shape[1]]


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("count", "size"), [(0, 8), (1, 1), (9, 100), (300, 1024)])
def test_rows_are_copied(
    native: ModuleType,
    count: int,
    size: int,
    id_dtype: torch.dtype,
    dtype: torch.dtype,
    rng: torch.Generator,
) -> None:
    table = torch.randn(77, size + 3, generator=rng).to(dtype)[:, :size]
    ids = torch.randint(0, 77, (count,), generator=rng, dtype=id_dtype)
    assert torch.equal(gather(native, table, ids), table[ids])


@pytest.mark.parametrize("dtype", CODES)
def test_scale_rounds_once(native: ModuleType, dtype: torch.dtype, rng: torch.Generator) -> None:
    table = torch.randn(20, 65, generator=rng).to(dtype)
    ids = torch.randint(0, 20, (50,), generator=rng)
    expected = (table[ids].float() * 33.9).to(dtype)
    assert torch.equal(gather(native, table, ids, 33.9), expected)


@pytest.mark.parametrize("bad", [-1, 20, 2**31 - 1])
def test_ids_out_of_range_are_named(native: ModuleType, bad: int) -> None:
    table = torch.zeros(20, 8)
    with pytest.raises(IndexError, match=rf"token id {bad} at position 2 is not below 20"):
        gather(native, table, torch.tensor([0, 19, bad], dtype=torch.int32))
