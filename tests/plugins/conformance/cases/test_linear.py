"""The cases of linear find whoever forgets a bias, a part, a stride or a scale."""

import pytest
import torch

from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe.slots.reference.linear import Linear
from hotshoe_conformance.cases.linear import LinearProblem


def test_the_reference_passes(defects) -> None:
    assert defects("linear", Linear) == []


def no_bias(self, tensors):
    zeros = [torch.zeros_like(part) for part in tensors.get("bias", [])]
    return Linear.load(self, {**tensors, "bias": zeros})


def parts_in_another_order(self, tensors):
    return Linear.load(self, {**tensors, "weight": tensors["weight"][::-1]})


@pytest.mark.parametrize("load", [no_bias, parts_in_another_order])
def test_weights_that_are_loaded_wrongly(finds, load) -> None:
    assert finds("linear", type("Mutant", (Linear,), {"load": load}))


def packed_rows(self, x):
    return Linear.__call__(self, x.as_strided(x.shape, (x.shape[1], 1)))


def one_column_less(self, x):
    x = x.clone()
    x[:, -1] = 0
    return Linear.__call__(self, x)


def rounded_twice(self, x):
    return Linear.__call__(self, x.half().to(x.dtype))


def overwriting(self, x):
    y = Linear.__call__(self, x)
    x.mul_(2)
    return y


@pytest.mark.parametrize("call", [packed_rows, one_column_less, rounded_twice, overwriting])
def test_rows_that_are_read_wrongly(finds, call) -> None:
    assert finds("linear", type("Mutant", (Linear,), {"__call__": call}))


def of_one_step(tensors):
    return {**tensors, "input_scale": [scale / 2 for scale in tensors["input_scale"]]}


def of_one_part(tensors):
    wholes = tensors["weight_global_scale"]
    return {**tensors, "weight_global_scale": [wholes[0]] * len(wholes), "weight_scale": [
        scale * wholes[0] / whole
        for scale, whole in zip(tensors["weight_scale"], wholes, strict=True)
    ]}  # fmt: skip


@pytest.mark.parametrize("wrong", [of_one_step, of_one_part])
def test_scales_of_whole_operands_that_are_others(finds, wrong) -> None:
    def load(self, tensors):
        return Linear.load(self, wrong(tensors) if "input_scale" in tensors else tensors)

    assert finds("linear", type("Mutant", (Linear,), {"load": load}))


def test_x_that_keeps_its_bits(finds) -> None:
    def call(self, x):
        if self._spec.activation is None or self._spec.activation.format != "fp4_e2m1":
            return Linear.__call__(self, x)
        return (x.double() @ self._dequantized().T).to(x.dtype)

    assert finds("linear", type("Mutant", (Linear,), {"__call__": call}))


def test_rows_with_nan_that_become_numbers(defects) -> None:
    def healthy(self, x):
        return Linear.__call__(self, x if self._spec.weight is None else x.nan_to_num())

    found = defects("linear", type("Mutant", (Linear,), {"__call__": healthy}))
    assert any("instead of nan" in defect for defect in found)


def test_activations_that_are_quantized_too_coarsely(defects) -> None:
    def coarse(self, x):
        if self._spec.activation is not None:
            step = x.abs().amax(1, keepdim=True).clamp(min=1e-9) / 15
            x = (x / step).round() * step
        return Linear.__call__(self, x)

    found = defects("linear", type("Mutant", (Linear,), {"__call__": coarse}))
    assert found


def test_a_quantized_weight_is_held_in_no_wider_type_than_x() -> None:
    quant = QuantSpec("fp8_e4m3", "channel")
    spec = LinearSpec(198, 249, "float32", weight=quant, activation=QuantSpec("fp8_e4m3", "token"))
    least, most = LinearProblem(spec, torch.empty(3, 198), [], [], 0).memory_bytes()
    assert least == 198 * 249
    assert 4 * 198 * 249 < most < 8 * 198 * 249
