"""Granite: where its four factors go."""

import ast
import inspect
from pathlib import Path

import pytest

from hotshoe.errors import CheckpointError
from hotshoe_models import granite

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/models.md"


def specs(ctx, wanted):
    return [spec for slot, spec in ctx.selector.decisions if slot == wanted]


def test_factors(build_family):
    ctx = build_family(
        "Granite", embedding_multiplier=12, attention_multiplier=0.015625, residual_multiplier=0.22
    )
    assert [spec.scale for spec in specs(ctx, "embedding")] == [12.0]
    assert [spec.residual_scale for spec in specs(ctx, "add_rms_norm")] == [0.22]
    assert {layer.spec.scale for layer in ctx.cache_layers} == {0.015625}


def test_absent_factors_are_one(build_family):
    ctx = build_family("Granite")
    assert [spec.scale for spec in specs(ctx, "embedding")] == [1.0]
    assert {layer.spec.scale for layer in ctx.cache_layers} == {1.0}


BAD = [
    ({"logits_scaling": 0}, "logits_scaling.*0"),
    ({"residual_multiplier": None}, "residual_multiplier"),
    ({"embedding_multiplier": "12"}, "embedding_multiplier.*'12'"),
    ({"attention_multiplier": float("inf")}, "attention_multiplier.*inf"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("Granite", **values)


def test_the_page_about_models_shows_this_family_as_it_is():
    [shown] = [b for b in PAGE.read_text().split("```python\n") if b.startswith("def build(")]
    real = ast.parse(inspect.getsource(granite.build))
    del real.body[0].body[0]  # the docstring
    assert ast.dump(ast.parse(shown.partition("```")[0])) == ast.dump(real)
