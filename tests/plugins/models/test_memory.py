"""Matrix memory: its recurrence in float64, with a running maximum, for gates at their caps."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext, ForwardBatch
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, CacheView, Selector, StepShape
from hotshoe_models.memory import Memory

HEADS, KEYS, VALUES, CAP = 2, 8, 5, 15.0


def written(rows, gates):
    """Return what is found [tokens, heads * value_dim], float64, as the paper computes it, and the
    magnitude of its terms."""
    q, k, v = rows.double().split([HEADS * KEYS] * 2 + [HEADS * VALUES], dim=-1)
    q, k, v = (x.view(len(x), HEADS, -1) for x in (q * KEYS**-0.5, k, v))
    raw = (CAP * torch.tanh(gates.double() / CAP)).view(-1, 2, HEADS)
    c = torch.zeros(HEADS, VALUES, KEYS, dtype=torch.float64)
    n, m = c[:, 0], torch.zeros(HEADS, dtype=torch.float64)
    sizes, size, found = c, n, []
    for t in range(len(rows)):
        log_f, log_i = F.logsigmoid(raw[t, 1]), raw[t, 0]
        m, before = torch.maximum(log_f + m, log_i), m
        f, i = torch.exp(log_f + before - m)[:, None], torch.exp(log_i - m)[:, None]
        c = f[..., None] * c + i[..., None] * v[t, :, :, None] * k[t, :, None, :]
        n = f * n + i * k[t]
        sizes = f[..., None] * sizes + i[..., None] * (v[t, :, :, None] * k[t, :, None, :]).abs()
        size = f * size + i * k[t].abs()
        least = torch.maximum((n * q[t]).sum(-1).abs(), torch.exp(-m))
        value = (c @ q[t][..., None])[..., 0] / least[:, None]
        terms = (sizes @ q[t].abs()[..., None])[..., 0], (size * q[t].abs()).sum(-1)[:, None]
        found.append((value, (terms[0] + value.abs() * terms[1]) / least[:, None]))
    return (torch.stack(parts).flatten(1) for parts in zip(*found, strict=True))


@pytest.mark.parametrize(("taken", "kept"), [(0, 3), (40, 40), (-40, 3), (40, -40)])
def test_it_is_what_a_running_maximum_gives(taken, kept):
    """Gates lie about these values, most at a cap. Models in 16 bits have float32 states."""
    facts = DeviceFacts("plain", "cpu", "", "any", 1 << 30, 1)
    ctx = BuildContext(Selector(SLOTS, [], facts), "bfloat16", "bfloat16", 16, 512)
    memory = Memory(ctx, HEADS, KEYS, VALUES, CAP)
    memory.allocate_cache(2)
    rows = torch.randn(400, HEADS * (2 * KEYS + VALUES) + 3).to(ctx.torch_dtype)
    gates = torch.tensor([taken, kept]).repeat_interleave(HEADS) + 10 * torch.randn(400, 2 * HEADS)
    found, table = [], torch.zeros(1, 1, dtype=torch.int32)
    for begin, end in ((0, 300), (300, 301), (301, 400)):
        starts = torch.tensor([0, end - begin], dtype=torch.int32)
        lens = torch.tensor([end], dtype=torch.int32)
        shape = StepShape(1, starts, lens, end - begin, end)
        view = CacheView(table, torch.arange(begin, end))
        view = replace(view, prepared=memory.planner[1](shape, view))
        batch = ForwardBatch(torch.arange(begin, end), shape, (view,))
        found.append(memory.read(rows[begin:end], gates[begin:end], batch))
    expected, terms = written(rows[:, :-3], gates)
    assert ((torch.cat(found) - expected).abs() <= 2e-5 * terms).all()


def test_states_do_not_fit_half_precision():
    facts = DeviceFacts("plain", "cpu", "", "any", 1 << 30, 1)
    ctx = BuildContext(Selector(SLOTS, [], facts), "float16", "float16", 16, 512)
    Memory(ctx, HEADS, KEYS, VALUES, CAP)
    ctx.state_dtype = "float16"
    with pytest.raises(ConfigError, match=r"state_dtype float16.*float32 or bfloat16"):
        Memory(ctx, HEADS, KEYS, VALUES, CAP)
