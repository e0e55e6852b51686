"""Names of architectures and tensors in files."""

import re
from pathlib import Path

import gguf
from tests.plugins.models.gguf import (
    hybrid_files,
    older_files,
    test_dense,
    test_encoders,
    test_mixtures,
    test_older,
    test_published,
)
from tests.plugins.models.gguf.conftest import ARCHS

from hotshoe_models.gguf.families import FAMILIES, MIXTURES


def test_every_family_is_tested() -> None:
    tested = [*test_dense.VARIANTS.values(), *test_mixtures.VARIANTS.values()]
    assert {variant.family for variant in tested} == set(ARCHS)
    hybrids = {*hybrid_files.ARCHS.values(), *hybrid_files.FURTHER}
    written = {*ARCHS.values(), *test_dense.ALIKE, "qwen3vlmoe", "bailingmoe2", *hybrids}
    older = {
        *older_files.ARCHS.values(),
        *test_older.ALIKE,
        *test_published.CASES,
        *(name.partition("-")[0] for name in test_published.FORMULAS),
        *test_encoders.FAMILIES,
        test_encoders.JINA,
        "nomic-bert-moe",
        *(name.partition(" ")[0] for name in test_encoders.PUBLISHED),
    }
    assert {v.family for v in test_older.VARIANTS.values()} == {*older_files.ARCHS}
    assert written | older | {"deci"} == {*FAMILIES, *MIXTURES}


def test_the_page_names_all_that_is_read_and_all_that_is_refused() -> None:
    page = Path(__file__).parents[4] / "docs/how-to/run-a-gguf-file.md"
    table, _, refused = page.read_text(encoding="utf-8").partition("These are refused:")
    refused = refused.partition("##")[0]
    read = {*FAMILIES, *MIXTURES}
    assert read <= {*re.findall(r"`([\w.-]+)`", table)}
    others = {*gguf.MODEL_ARCH_NAMES.values()} - read
    assert others <= {*re.findall(r"`([\w.-]+)`", refused)}
