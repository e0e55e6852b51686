"""A request's keys and values, collected from blocks anywhere, and nothing behind its end."""

import inspect
import os
import subprocess
import sys

import pytest
import torch
from tests.platforms.triton.conftest import DEVICE

from hotshoe.slots import AttentionSpec

SPEC = AttentionSpec(4, 2, 80, "bfloat16", "bfloat16", 16, 0.1)


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 70])
def test_tokens_are_collected_in_order(num_tokens: int) -> None:
    from hotshoe_cuda.gather import gather_blocks

    heads, size, dim = SPEC.num_kv_heads, SPEC.block_size, SPEC.head_dim
    needed = -(-num_tokens // size)
    storage = torch.full((2, needed + 3, heads * size * dim + 64), torch.nan, device=DEVICE)
    storage = storage.bfloat16()
    blocks = torch.randperm(needed + 3, device=DEVICE)[:needed].int()
    tokens = torch.randn(2, heads, needed * size, dim, device=DEVICE).bfloat16()
    tokens[:, :, num_tokens:] = torch.nan
    pages = tokens.unflatten(2, (needed, size)).transpose(1, 2)
    storage[:, blocks, : heads * size * dim] = pages.flatten(2)
    cache = storage[:, :, : heads * size * dim]
    found = gather_blocks(cache, blocks, num_tokens, SPEC)
    for one, wanted in zip(found, tokens[:, None, :, :num_tokens], strict=True):
        assert one.shape == (1, heads, num_tokens, dim)
        assert torch.equal(one, wanted)


def test_the_kernel_compiles_where_it_is_used() -> None:
    """In a process of its own, as this one interprets."""
    code = inspect.getsource(compile_kernel) + "\ncompile_kernel()"
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def compile_kernel() -> None:
    import torch

    from hotshoe.slots import AttentionSpec
    from hotshoe_cuda.gather import gather_blocks
    from hotshoe_triton.device import ARCHS
    from hotshoe_triton.matrix import Compiling, usage

    spec = AttentionSpec(32, 8, 128, "bfloat16", "bfloat16", 32, 0.088)
    cache = torch.empty(2, 128, 32 * 8 * 128, dtype=torch.bfloat16, device="meta")
    with Compiling(ARCHS["sm_90"]) as compiling:
        gather_blocks(cache, torch.empty(128, dtype=torch.int32, device="meta"), 4096, spec)
    [(_, compiled)] = compiling.compiled
    assert "ld.global.v4" in compiled.asm["ptx"], "loads are narrow"
    assert usage(ARCHS["sm_90"], compiled)[1] == 0, "registers are spilled"
