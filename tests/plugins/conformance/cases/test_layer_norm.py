"""The cases of slot `layer_norm` find whoever overlooks a field or sums in the element type."""

import pytest
import torch

from hotshoe.slots.reference.norm import build_layer_norm


def test_the_reference_passes(defects) -> None:
    assert defects("layer_norm", build_layer_norm) == []


def test_an_epsilon_that_is_overlooked(finds, blind) -> None:
    assert finds("layer_norm", blind("layer_norm", eps=1e-5))


def test_a_bias_that_is_overlooked(finds, wrapped) -> None:
    def bare(op, spec, x, weight, bias):
        return op(x, weight, None if bias is None else torch.zeros_like(bias))

    assert finds("layer_norm", wrapped("layer_norm", bare))


def test_a_mean_that_is_left_in(finds) -> None:
    def build(spec, facts):
        def norm(x, weight, bias):
            wide = x.float()
            y = wide * (wide.square().mean(-1, keepdim=True) + spec.eps).rsqrt() * weight.float()
            return (y if bias is None else y + bias.float()).to(x.dtype)

        return norm

    assert finds("layer_norm", build)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_in_the_element_type(defects, dtype) -> None:
    def build(spec, facts):
        def norm(x, weight, bias):
            x = x - x.mean(-1, keepdim=True)
            y = x * (x.square().mean(-1, keepdim=True) + spec.eps).rsqrt() * weight
            return y if bias is None else y + bias

        return norm

    assert any(dtype in defect for defect in defects("layer_norm", build))


def test_a_row_with_nan_that_looks_healthy(defects, wrapped) -> None:
    def healthy(op, spec, x, weight, bias):
        return op(x, weight, bias).nan_to_num(0.0)

    found = defects("layer_norm", wrapped("layer_norm", healthy))
    assert found and all("instead of nan" in defect for defect in found)
