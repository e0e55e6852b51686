"""Names of architectures and tensors in files."""

from tests.plugins.models.gguf import hybrid_files, test_dense, test_mixtures
from tests.plugins.models.gguf.conftest import ARCHS

from hotshoe_models.gguf.families import FAMILIES, MIXTURES


def test_every_family_is_tested() -> None:
    tested = [*test_dense.VARIANTS.values(), *test_mixtures.VARIANTS.values()]
    assert {variant.family for variant in tested} == set(ARCHS)
    hybrids = {*hybrid_files.ARCHS.values(), *hybrid_files.FURTHER}
    written = {*ARCHS.values(), *test_dense.ALIKE, "qwen3vlmoe", "bailingmoe2", *hybrids}
    assert written | {"deci"} == {*FAMILIES, *MIXTURES}


def test_a_number_that_no_layer_has_is_no_layer() -> None:
    name = f"blk.{'1' * 5000}.attn_norm.weight"
    assert FAMILIES["qwen35"].known_as(name) == name
