"""The cases of the norms find whoever overlooks a field or sums in the element type."""

import pytest

from hotshoe.slots import accept
from hotshoe.slots.reference.norm import build_add_norm, build_norm
from hotshoe_conformance.cases.quant import ACTIVATIONS


def anything(spec, facts):
    return accept(1)


def test_the_references_pass_also_quantized(defects) -> None:
    assert defects("rms_norm", build_norm, supports=anything) == []
    assert defects("add_rms_norm", build_add_norm, supports=anything) == []


@pytest.mark.parametrize("slot", ["rms_norm", "add_rms_norm"])
@pytest.mark.parametrize("fields", [{"weight_offset": 0.0}, {"eps": 1e-6}], ids=str)
def test_fields_that_are_overlooked(finds, blind, slot, fields) -> None:
    assert finds(slot, blind(slot, **fields))


def test_the_residual_s_scale(finds, blind) -> None:
    assert finds("add_rms_norm", blind("add_rms_norm", residual_scale=1.0))


def test_squares_in_the_element_type(defects) -> None:
    def build(spec, facts):
        def norm(x, weight):
            scale = (x.square().mean(-1, keepdim=True) + spec.eps).rsqrt()
            return x * scale * (weight + spec.weight_offset)

        return norm

    found = defects("rms_norm", build)
    assert any("bfloat16" in defect for defect in found)
    assert any("float16" in defect for defect in found)


def test_the_old_residual_where_the_new_one_belongs(defects, wrapped) -> None:
    def old(op, spec, x, residual, weight):
        return op(x, residual, weight)[0], residual

    assert all("residual" in d for d in defects("add_rms_norm", wrapped("add_rms_norm", old)))


@pytest.mark.parametrize("slot", ["rms_norm", "add_rms_norm"])
def test_rows_with_nan_whose_scale_is_a_number(defects, wrapped, slot) -> None:
    def healthy(op, spec, *arguments):
        y = op(*arguments)
        if spec.quant is None:
            return y
        (values, scales), *total = y if slot == "add_rms_norm" else (y,)
        quantized = (values, scales.nan_to_num(1.0))
        return (quantized, *total) if total else quantized

    found = defects(slot, wrapped(slot, healthy), supports=anything)
    assert found
    assert [d for d in found if "instead of nan" not in d] == []


def test_quantized_results_that_are_not(defects, blind, wrapped) -> None:
    found = defects("rms_norm", blind("rms_norm", quant=None), supports=anything)
    assert any("not values and scales" in defect for defect in found)

    def doubled(op, spec, x, weight):
        y = op(x, weight)
        return y if spec.quant is None else (y[0], y[1] * 1.02)

    found = defects("rms_norm", wrapped("rms_norm", doubled), supports=anything)
    assert len(found) >= len(ACTIVATIONS)
