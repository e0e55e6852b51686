"""What kernels add to perplexity: each form of weights beside its own numbers, dequantized.

The bundled model's weights are rounded here, without care for quality, so that every form has the
same test. The reference multiplies dequantized weights by the same x in float64.
"""

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.layers import OnlineFormat, Storage
from hotshoe.slots import QuantSpec
from hotshoe_demo import heldout
from hotshoe_models.gguf.storage import FORMS as GGUF
from hotshoe_quantization import plugin

#: What kernels may change of perplexity; and what is left to luck: where x or results are rounded,
#: the least difference makes another number of some, so that log probabilities differ by chance.
MOST, LUCK = 0.001, 0.008
WINDOW = 256
FP8 = "fp8_e4m3"
#: Of three or four values, rounded to nearest, of which no model is left.
COARSE = ("Q2_K", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0")
INPUTS = 384  # of the bundled model's matrices; groups have to divide them


def first_of_each(forms: Mapping[str, QuantSpec]) -> dict[str, QuantSpec]:
    """Leave out names of the same form, groups that are too large, and too few values."""
    names = {form: name for name, form in reversed(forms.items()) if name not in COARSE}
    return {name: form for form, name in names.items() if INPUTS % (form.group_size or 1) == 0}


TOKEN8, TOKENF = (QuantSpec(kind, "token", dynamic=True) for kind in ("int8", FP8))
FORMS = {
    "int8, x too": Storage(QuantSpec("int8", "channel"), TOKEN8),
    "fp8, x too": Storage(QuantSpec(FP8, "channel"), TOKENF),
    "int8": Storage(QuantSpec("int8", "channel")),
    "fp8": Storage(QuantSpec(FP8, "channel")),
    "fp8 by block": Storage(
        QuantSpec(FP8, "block", block_shape=(128, 128)),
        QuantSpec(FP8, "group", 128, dynamic=True),
    ),
    "int4 of 128": Storage(QuantSpec("int4", "group", 128)),
    "nvfp4": Storage(QuantSpec("fp4_e2m1", "group", 16)),
    **{name: Storage(form) for name, form in first_of_each(GGUF).items()},
}
#: In float32 with x as it is nothing is left to luck, so a few tokens do.
QUICK = ("fp8", "Q4_1", "MXFP4")
CASES = [("float32", name, 2) for name in QUICK]
CASES += [pytest.param("bfloat16", name, 16, marks=pytest.mark.slow) for name in FORMS]
LARGEST = {"int4": 7, "int8": 127, FP8: 448, "fp4_e2m1": 12}
#: Twice the numbers of 4-bit floats.
HALVES = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12])


class Rounded(OnlineFormat):
    """Plain weights of the checkpoint, in any form that kernels know."""

    def canonical(self, layer, tensors):
        form = self.storage(layer, (0, 0)).weight
        made = [rounded(part.float(), form) for part in tensors["weight"]]
        names = ("weight", "weight_scale", "weight_zero_point")[: 3 - form.symmetric]
        found = dict(zip(names, map(list, zip(*made, strict=True)), strict=False))
        if is_nvfp4(form):
            found["weight_global_scale"] = [torch.ones(1)] * len(made)
        return dict(tensors) | found


def is_nvfp4(form: QuantSpec) -> bool:
    """Tell whether scales are 8-bit floats too."""
    return (form.format, form.group_size) == ("fp4_e2m1", 16)


def rounded(weight: Tensor, form: QuantSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Return values, scales and zero points of groups, rows or blocks."""
    rows, columns = weight.shape
    height, width = form.block_shape or (1, form.group_size or columns)
    cut = weight.view(rows // height, height, columns // width, width)
    low, high = cut.amin((1, 3), keepdim=True), cut.amax((1, 3), keepdim=True)
    top = LARGEST[form.format] if form.bits is None else 2 ** (form.bits - 1) - 1
    scale, zero = torch.maximum(high, -low) / top, torch.zeros_like(low)
    least = -top - 1
    if form.values is not None:
        least, top = form.values[0], form.values[-1]
        scale = torch.maximum(high, -low) / min(-least, top) if form.symmetric else scale
    if not form.symmetric:
        scale = (high - low) / (top - least)
        zero = least - low / scale
    if is_nvfp4(form):  # twice the scale is stored; numbers below 2^-9 would be 0
        scale = (2 * scale).clamp(min=2.0**-9).to(torch.float8_e4m3fn).float() / 2
    values = cut / scale + zero
    if form.format == FP8:
        kept = values.to(torch.float8_e4m3fn)
    elif form.values is not None:
        known = torch.tensor(form.values, dtype=torch.int8)
        kept = known[torch.bucketize(values, (known[1:] + known[:-1].float()) / 2)]
    elif form.format == "fp4_e2m1":
        middles = (HALVES[1:] + HALVES[:-1]) / 2
        kept = (HALVES[torch.bucketize(values.abs(), middles)] * values.sign()).to(torch.int8)
    else:
        kept = values.round().clamp(-top - 1, top).to(torch.int8)
    flat = (rows // height, columns // width)
    return kept.view(rows, columns), scale.view(flat), zero.view(flat)


def made() -> Rounded:
    """Return the format of the test that runs."""
    return Rounded(made.form)


def log_probabilities(num_windows: int, **options: object) -> Tensor:
    """Judge each token of held-out text but the first of a window."""
    sizes = {"max_num_seqs": num_windows, "max_model_len": WINDOW + 1}
    with LLM("demo", platform="cpu", quantization="rounded", **sizes, **options) as llm:
        ids = llm.tokenizer.encode(heldout.text())
        windows = [TokensPrompt(ids[i * WINDOW :][:WINDOW]) for i in range(num_windows)]
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        outputs = llm.generate(windows, params)
        chosen = {d.chosen for d in llm.decisions if d.slot == "linear" and d.spec.weight}
        assert ("reference" in chosen) == ("kernel" in options)
    found = [one.logprobs[0] for output in outputs for one in output.prompt_logprobs if one]
    assert len(found) == num_windows * (WINDOW - 1)
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "name", "num_windows"), CASES)
def test_kernels_keep_perplexity(
    dtype: str, name: str, num_windows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plugin.METHODS, "rounded", f"{__name__}:made")
    monkeypatch.setattr(made, "form", FORMS[name], raising=False)
    wanted = log_probabilities(num_windows, dtype=dtype, kernel={"linear": "reference"})
    lost = wanted - log_probabilities(num_windows, dtype=dtype)
    assert 1 < wanted.mean().neg().exp() < 20
    luck = 3 * lost.std() / math.sqrt(len(lost))
    assert luck < LUCK
    print(f"perplexity {lost.mean().expm1():+.4%}, luck {luck:.4%}")
    assert abs(lost.mean().expm1()) < MOST + luck
