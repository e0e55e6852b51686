"""Names of matrices: of files, of modules, and behind the prefix of a part that makes text."""

import pytest
import torch

from hotshoe.layers.adapter_names import MatrixNames
from hotshoe.layers.adapters import Factors
from hotshoe.layers.weights import WeightTable


@pytest.mark.parametrize(
    ("prefix", "given", "known"),
    [
        ("model.", "model.layers.2.q", "model.layers.1.q"),  # layer 1 of the file is left out
        ("model.", "model.layers.1.q", "none"),
        ("model.", "model.language_model.layers.2.q", "model.layers.1.q"),
        ("model.", "model.language_model.layers.1.q", "none"),
        ("model.", "language_model.model.layers.0.q", "model.layers.0.q"),
        ("backbone.", "model.layers.0.q", "backbone.layers.0.q"),
        ("model.", "model.vision_tower.layers.0.q", "none"),
        ("model.", "lm_head", "lm_head"),
        ("model.", "language_model.lm_head", "lm_head"),
    ],
)
def test_a_matrix_is_found_by_any_of_its_names(prefix: str, given: str, known: str) -> None:
    weights = WeightTable()
    weights.rename(r"^model\.layers\.1\.", "seeing.1.")
    weights.rename(r"^model\.layers\.2\.", "model.layers.1.")
    own = {f"{prefix}layers.0.q", f"{prefix}layers.1.q", "lm_head"}
    assert MatrixNames(weights, own).known(given) == (given if known == "none" else known)


@pytest.mark.parametrize("prefix", ["model.", "backbone."])
def test_a_matrix_of_another_stage_is_found_by_any_of_its_names(prefix: str) -> None:
    weights = WeightTable()
    weights.elsewhere([rf"^{prefix}layers\.1\."])
    names = MatrixNames(weights, [f"{prefix}layers.0.q"])
    for given in ("model.layers.1.q", "model.language_model.layers.1.q", f"{prefix}layers.1.q"):
        assert names.known(given) == f"{prefix}layers.1.q"
    assert names.known("model.layers.2.q") == "model.layers.2.q"


def test_a_refusal_has_one_reason() -> None:
    weights = WeightTable()
    weights.expect("model.layers.0.up.weight", (4, 2), lambda tensor: None)
    weights.expect("model.norm.weight", (4,), lambda tensor: None)
    names = MatrixNames(weights, ())
    amid = names.why_not("model.language_model.layers.0.up")
    assert amid == "an operation multiplies by amid others"
    for other in ("model.norm", "model.layers.0.down"):
        assert "is no layer" in names.why_not(other)


def test_gates_and_ups_in_one_matrix_are_those_of_layers() -> None:
    weights, prefix = WeightTable(), "model.layers.0.mlp."
    weights.elsewhere([r"^model\.layers\.1\."])
    names = MatrixNames(weights, [f"{prefix}gate_proj", f"{prefix}up_proj", f"{prefix}down_proj"])
    a, b, lengths = torch.randn(2, 3), torch.randn(8, 2), torch.randn(8)
    whole = Factors(a.new_empty(0, 0), a.new_empty(0, 0), whole=torch.randn(8, 3))
    for number, half in enumerate(("gate_proj", "up_proj")):
        at = slice(4 * number, 4 * number + 4)
        found = list(names.placed(f"{prefix}gate_up_proj", Factors(a, b, lengths, 0.5)))
        name, (own_a, own_b, own_lengths, scale, *_) = found[number]
        assert (name, scale) == (prefix + half, 0.5)
        for own, wanted in ((own_a, a), (own_b, b[at]), (own_lengths, lengths[at])):
            assert torch.equal(own, wanted)
        name, pair = list(names.placed(f"{prefix}gate_up_proj", whole))[number]
        assert pair.whole is not None and torch.equal(pair.whole, whole.whole[at])
    others = [name for name, _ in names.placed("model.layers.1.mlp.gate_up_proj", Factors(a, b))]
    assert others == ["model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj"]
    [(name, _)] = names.placed("model.layers.2.mlp.gate_up_proj", Factors(a, b))
    assert name == "model.layers.2.mlp.gate_up_proj"
    stacked = MatrixNames(WeightTable(), [f"{prefix}gate_up_proj"])
    [(name, pair)] = stacked.placed(f"{prefix}gate_up_proj", Factors(a, b))
    assert name == f"{prefix}gate_up_proj" and pair.b is b
