"""Examples of stored formats mean what the readers read."""

import pytest
import torch

from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager
from hotshoe.slots import REFERENCE, SLOTS, Candidate
from hotshoe_conformance.cases.base import HOST
from hotshoe_conformance.formats import prove_formats
from hotshoe_quantization.plugin import FORMATS, hotshoe_format_examples


def test_every_example_is_of_a_format_and_differs_by_seed() -> None:
    for name, reference in hotshoe_format_examples().items():
        assert name in FORMATS
        weights = []
        for seed in (1, 2):
            [example] = resolve_lazy(reference)(torch.Generator().manual_seed(seed))
            assert example.config["quant_method"] == name
            weights.append(example.weight)
        assert not torch.equal(*weights)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_reference_multiplies_what_they_mean(seed: int) -> None:
    slot = SLOTS["linear"]
    reference = Candidate("linear", REFERENCE, slot.reference_supports, slot.reference)
    report = prove_formats(PluginManager(), [reference], HOST, seed)
    assert report.defects == []
    for name in hotshoe_format_examples():
        assert report.outcomes[f"quant_method {name}"] == "passed: reference"
