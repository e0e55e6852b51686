"""The attention backend: steps as the engine describes them, numbers of a plain product."""

import importlib
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 8, 16


@pytest.fixture
def module(engine):
    return importlib.import_module("hotshoe_bridge.vllm.attention")


def described(queries: list[int], lens: list[int], table, causal=True) -> SimpleNamespace:
    """Describe a step as the engine does: more rows than requests, padding behind the tokens."""
    starts = torch.tensor([0, *queries]).cumsum(0).int()
    slots = [
        int(row[at // BLOCK]) * BLOCK + at % BLOCK
        for row, count, end in zip(table, queries, lens, strict=True)
        for at in range(end - count, end)
    ]
    return SimpleNamespace(
        num_reqs=len(queries),
        num_actual_tokens=sum(queries),
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor([*lens, 0]),
        block_table_tensor=torch.tensor([*table, [0] * len(table[0])]),
        slot_mapping=torch.tensor([*slots, -1]),
        causal=causal,
    )


@torch.inference_mode()
@pytest.mark.parametrize("window", [None, 5])
def test_two_steps_of_two_sequences(module, window) -> None:
    assert module.Backend.forward_includes_kv_cache_update is False
    layer = module.Backend.get_impl_cls()(
        HEADS, SIZE, 0.3, KV_HEADS, None, window, "auto", None, "decoder", None
    )
    builder = module.Backend.get_builder_cls()(None, ["layer"], None, torch.device("cpu"))
    memory = torch.randn(6, KV_HEADS, BLOCK, 2 * SIZE)
    table, lens = [[4, 2], [5, 1]], [21, 18]
    keys, values = ([torch.randn(n, KV_HEADS, SIZE) for n in lens] for _ in range(2))
    for queries, ends in (([20, 17], [20, 17]), ([1, 1], [21, 18])):
        meta = described(queries, ends, table)
        step = builder.build(0, meta)
        spans = [slice(end - n, end) for n, end in zip(queries, ends, strict=True)]
        k, v = (
            torch.cat(
                [*(part[span] for part, span in zip(parts, spans, strict=True)), parts[0][:2]]
            )
            for parts in (keys, values)
        )
        q = torch.randn(len(k), HEADS, SIZE)  # two rows more than tokens, as batches are padded
        layer.do_kv_cache_update(None, k, v, memory, meta.slot_mapping[:-1])
        y = layer.forward(None, q, k, v, memory, step, torch.zeros(len(q), HEADS, SIZE))
        assert not y[sum(queries) :].any()
        for i, (rows, span) in enumerate(zip(q[: sum(queries)].split(queries), spans, strict=True)):
            at = torch.arange(span.stop)
            seen = at <= at[span][:, None]
            seen &= at > at[span][:, None] - (window or span.stop)
            wide = [
                p[i][: span.stop].repeat_interleave(2, 1).transpose(0, 1) for p in (keys, values)
            ]
            want = F.scaled_dot_product_attention(
                rows.transpose(0, 1), *wide, attn_mask=seen, scale=0.3
            )
            assert torch.allclose(
                y[: sum(queries)].split(queries)[i], want.transpose(0, 1), atol=1e-5
            )


def test_while_memory_is_measured_nothing_is_computed(module) -> None:
    layer = module.Attention(HEADS, SIZE, 0.3)
    y = torch.ones(2, HEADS, SIZE)
    assert layer.forward(None, y, y, y, torch.tensor([]), None, y) is y


def test_padding_goes_to_the_first_block(module) -> None:
    assert module._slots(torch.tensor([3, -1])).tolist() == [3, 0]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"alibi_slopes": [1.0]}, "no slot is attention with ALiBi"),
        ({"attn_type": "encoder"}, "no slot is attention with ALiBi, or of an encoder"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype is 'fp8'; use 'auto'"),
    ],
)
def test_layers_that_are_no_slot_are_refused(module, wrong, why) -> None:
    with pytest.raises(ValueError, match=why):
        module.Attention(HEADS, SIZE, 0.3, **wrong)


def test_what_is_asked_of_a_step_in_vain(module) -> None:
    layer = module.Attention(HEADS, SIZE, 0.3)
    builder = module.Builder(None, [], None, torch.device("cpu"))
    with pytest.raises(ValueError, match="not causal"):
        builder.build(0, described([1], [1], [[1]], causal=False))
    y = torch.ones(1, HEADS, SIZE)
    with pytest.raises(ValueError, match="does not quantize what it returns"):
        layer.forward(None, y, y, y, y, None, y, output_scale=y)
