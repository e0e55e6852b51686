"""Values narrower than keys: what kernels see of them."""

from dataclasses import replace

import pytest
import torch

from hotshoe.slots import PLAIN_LAYOUT, AttentionSpec, RotaryAndCacheSpec, accept, narrow, refuse

SPEC = AttentionSpec(4, 2, 6, "float32", "float32", 8, 0.2, v_head_dim=4)
LAYOUT = narrow.with_room(PLAIN_LAYOUT)
WRITER = RotaryAndCacheSpec(4, 2, 6, 6, "float32", "float32", 8, LAYOUT, v_head_dim=4)


def test_kernels_are_asked_for_heads_of_one_width() -> None:
    assert narrow.even(SPEC).value_dim == 6
    assert narrow.even(WRITER).value_dim == 6 and narrow.even(WRITER).layout == PLAIN_LAYOUT


def test_zeros_fill_values_and_are_cut_off() -> None:
    qkv = torch.randn(3, 4 * 6 + 2 * 6 + 2 * 4)
    wide = narrow.widened(qkv, WRITER)
    values = wide[:, -12:].view(3, 2, 6)
    assert torch.equal(wide[:, :36], qkv[:, :36])
    assert torch.equal(values[..., :4].flatten(1), qkv[:, 36:]) and not values[..., 4:].any()
    out = torch.randn(3, 4 * 6)
    assert torch.equal(narrow.narrowed(out, SPEC), out.view(3, 4, 6)[..., :4].reshape(3, 16))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (replace(SPEC, v_head_dim=None), "as many channels"),
        (replace(SPEC, v_head_dim=7), "as many channels"),
        (replace(WRITER, layout=PLAIN_LAYOUT), "no room for values"),
        (replace(SPEC, kv_dtype="int8"), "kv_dtype int8 differs"),
    ],
)
def test_what_is_refused_says_why(spec, why) -> None:
    assert why in narrow.judge(spec, accept(100, "fits")).reason


def test_the_kernel_has_the_last_word() -> None:
    assert narrow.judge(SPEC, refuse("too small")).reason == "too small"
    found = narrow.judge(SPEC, accept(100, "fits"))
    assert found.accepted and found.reason == "fits; values of 4 channels take 6"
