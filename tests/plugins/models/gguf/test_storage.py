"""Packed matrices: canonical forms hold the same numbers, whole blocks go to each rank."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.plugins.models.gguf.conftest import write
from tests.plugins.models.gguf.test_blocks import draw, oracle

from hotshoe.engine.explain.fates import WeightFate, fates
from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext, Embedding, Linear, Logits, Matrix, Share, Storage
from hotshoe.layers.matrix import MIXED
from hotshoe.loader.checkpoint import feed
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Candidate, LinearSpec, Selector, accept
from hotshoe.slots.reference.linear import Linear as Reference
from hotshoe_models.gguf.families import FAMILIES
from hotshoe_models.gguf.header import Header
from hotshoe_models.gguf.storage import FORMS, Packed
from hotshoe_models.gguf.types import TYPES
from hotshoe_models.gguf.weights import Tensors

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
BLOCKS = {kind.name: kind for kind in TYPES.values()}
DOWN = "model.layers.0.mlp.down_proj"
#: Of the rows and groups that a type has in this test.
ROWS, COLUMNS = 6, 512


def whole(rows: int = ROWS, columns: int = COLUMNS) -> Share:
    return Share((slice(0, rows),), slice(0, columns))


@pytest.mark.parametrize("kind", FORMS)
def test_canonical_forms_hold_the_same_numbers(kind: str) -> None:
    size = BLOCKS[kind]
    data = draw(kind, ROWS * COLUMNS // size.values)
    data[:3] = 0  # blocks of nothing but zeros
    packed = Packed({f"{DOWN}.weight": kind}, frozenset())
    stored = packed.storage(DOWN, (ROWS, COLUMNS))
    assert stored is not None and stored.activation is None
    specs = packed.tensors(DOWN, (ROWS, COLUMNS), whole())
    assert packed.kept == {f"{DOWN}.weight"}
    rows = torch.from_numpy(data).view(ROWS, -1)
    assert specs["weight"].shape == rows.shape
    kept = packed.canonical(DOWN, {"weight": specs["weight"].keep(rows)})
    held = Reference(LinearSpec(COLUMNS, ROWS, "float32", weight=stored.weight), FACTS)
    held.load(kept)
    wanted = oracle(kind, data).reshape(ROWS, COLUMNS)
    np.testing.assert_allclose(held._dequantized().numpy(), wanted, rtol=2e-6, atol=2e-6)


def of_one_size(kinds: tuple[str, str]) -> bool:
    sizes = [BLOCKS[kind].nbytes / BLOCKS[kind].values for kind in kinds]
    return kinds[0] != kinds[1] and sizes[0] == sizes[1]


@pytest.mark.parametrize("kind", FORMS)
def test_forms_that_are_joined_hold_the_numbers_of_both(kind: str) -> None:
    for other in FORMS:
        assert_joined((kind, other))


def assert_joined(kinds: tuple[str, str]) -> None:
    """Join matrices of two types, if anything can hold both, and compare their numbers."""
    names, columns = ("a", "b"), 256
    packed = Packed({f"{n}.weight": k for n, k in zip(names, kinds, strict=True)}, frozenset())
    packed.join(names)
    first, second = (packed.storage(name, (ROWS, columns)) for name in names)
    assert first is not None
    alone = FORMS[kinds[0]] == FORMS[kinds[1]]  # nothing is to be joined
    if not alone and ("MXFP4" in kinds or of_one_size(kinds)):
        assert first != second
        return
    assert first == second
    pieces, wanted = [], []
    for name, kind in zip(names, kinds, strict=True):
        data = draw(kind, ROWS * columns // BLOCKS[kind].values)
        data[:2] = 0
        [spec] = packed.tensors(name, (ROWS, columns), whole(ROWS, columns)).values()
        pieces += spec.keep(torch.from_numpy(data).view(ROWS, -1))
        wanted.append(oracle(kind, data).reshape(ROWS, columns))
    held = Reference(LinearSpec(columns, 2 * ROWS, "float32", weight=first.weight), FACTS)
    held.load(packed.canonical("a", {"weight": pieces}))
    found = held._dequantized().numpy()
    np.testing.assert_allclose(found, np.concatenate(wanted), rtol=2e-6, atol=2e-6)


def test_matrices_of_which_one_is_plain_are_not_joined() -> None:
    packed = Packed({"a.weight": "Q4_0", "b.weight": "F16"}, frozenset())
    packed.join(["a", "b"])
    assert packed.storage("a", (4, 32)) == Storage(FORMS["Q4_0"])
    assert packed.storage("b", (4, 32)) is None


def test_ranks_get_whole_blocks() -> None:
    packed = Packed({f"{DOWN}.weight": "Q4_K"}, frozenset())
    shares = [Share((slice(0, 2), slice(4, 6)), slice(256, 512), 1), whole(6, 128)]
    spec = packed.tensors(DOWN, (ROWS, COLUMNS), shares[0])["weight"]
    rows = torch.arange(6)[:, None].expand(6, 288).to(torch.uint8).clone()
    rows[:, 144:] += 100
    assert [piece[:, 0].tolist() for piece in spec.keep(rows)] == [[100, 101], [104, 105], [0]]
    with pytest.raises(CheckpointError, match="inputs 0 to 128 are no whole blocks of 256"):
        packed.tensors(DOWN, (ROWS, COLUMNS), shares[1])


def test_what_is_wanted_plain_has_blocks_of_another_name() -> None:
    kinds = {"a.weight": "Q8_0", "b.weight": "F16", "c.weight": "Q8_0"}
    packed = Packed(kinds, frozenset({"c.weight"}))
    assert packed.storage("b", (4, 32)) is packed.storage("d", (4, 32)) is None
    whole = Share((slice(0, 4),), slice(0, 32))
    assert [*packed.tensors("a", (4, 32), whole)] == ["weight"]
    assert [*packed.tensors("c", (4, 32), whole)] == ["blocks"]
    assert packed.kept == {"a.weight", "c.blocks"}
    packed.unpack("c")
    assert packed.kept == {"a.weight"}


class Kernel(Reference):
    """The reference by another name, so that somebody serves its forms."""


class File(NamedTuple):
    """See `hotshoe.models.model_file.ModelFile`."""

    source: Tensors

    def weights(self, dtype: torch.dtype) -> Tensors:
        return self.source


def built(
    path: Path, served: bool, names: list[str], kinds: dict[str, str]
) -> tuple[Linear, list[WeightFate]]:
    """Build a layer of a file's matrices, and say what becomes of them."""
    candidates = [Candidate("linear", "kernel", lambda spec, facts: accept(1), Kernel)]
    selector = Selector(SLOTS, candidates if served else [], FACTS)
    header = Header(path)
    packed = Packed({f"{name}.weight": kinds[name] for name in names}, frozenset())
    ctx = BuildContext(selector, "float32", "float32", 4, 32, format=packed)
    layer = Linear(ctx, Matrix(ctx, [(name, 8) for name in names], 256))
    source = Tensors([header], FAMILIES["qwen2"], {}, torch.float32, packed.kept)
    feed(ctx.weights, source)
    ctx.weights.check_complete()
    return layer, fates(ctx.weights, File(source), "auto")[0]


@pytest.mark.parametrize(
    ("served", "kinds", "form"),
    [
        (True, ("Q4_0", "Q4_0"), "int4 by group of 32"),
        (True, ("Q8_0", "Q5_0"), "int8 by group of 32"),
        (True, ("Q8_0", "Q4_0"), "int8 by group of 32"),
        (True, ("Q4_1", "Q8_0"), "int8 by group of 32 with zero points"),
        (True, ("F16", "Q4_0"), "float32"),
        (False, ("Q4_0", "Q4_0"), "float32"),
    ],
)
def test_layers_keep_what_some_kernel_takes(
    tmp_path: Path, served: bool, kinds: tuple[str, str], form: str
) -> None:
    names = {"blk.0.ffn_up.weight": kinds[0], "blk.0.ffn_gate.weight": kinds[1]}
    tensors = {name: np.random.randn(8, 256).astype(np.float32) for name in names}
    path = write(tmp_path / "m.gguf", "qwen2", {}, tensors, names.__getitem__)
    layers = [f"model.layers.0.mlp.{part}_proj" for part in ("up", "gate")]
    layer, held = built(path, served, layers, dict(zip(layers, kinds, strict=True)))
    mixed = f" ({MIXED})" if kinds[0] != kinds[1] and form == "float32" else ""
    assert {fate.form for fate in held} == {form + mixed}
    bits = [f"{kind}, {8 * BLOCKS[kind].nbytes / BLOCKS[kind].values:.3g} bits" for kind in kinds]
    assert [fate.stored for fate in held] == bits
    x = torch.randn(3, 256)
    source = Tensors([Header(path)], FAMILIES["qwen2"], {}, torch.float32)
    dense = torch.cat([source.tensor(f"{name}.weight") for name in layers])
    torch.testing.assert_close(layer(x), x @ dense.T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("device", "paper"), [("cpu", False), ("cpu", True), ("meta", False)])
def test_a_tied_output_matrix_is_packed_on_the_host(
    tmp_path: Path, device: str, paper: bool
) -> None:
    tensors = {"token_embd.weight": np.random.randn(12, 64).astype(np.float32)}
    path = write(tmp_path / "m.gguf", "qwen2", {}, tensors, lambda name: "Q8_0")
    name, facts = "model.embed_tokens", replace(FACTS, device=device)
    packed = Packed({f"{name}.weight": "Q8_0"}, frozenset({f"{name}.weight"}))
    kernel = Candidate("linear", "kernel", lambda spec, facts: accept(1), Kernel)
    selector = Selector(SLOTS, [kernel], facts)
    if paper:
        selector.facts = replace(facts, device="meta")
    ctx = BuildContext(selector, "float32", "float32", 4, 32, format=packed)
    embedding = Embedding(ctx, name, 12, 64)
    logits = Logits(ctx, name, 12, 64, quantize=True, adapted="lm_head")
    assert packed.kept == ({f"{name}.blocks"} if device == "cpu" else set())
    if device != "cpu" or paper:
        return
    feed(ctx.weights, Tensors([Header(path)], FAMILIES["qwen2"], {}, torch.float32, packed.kept))
    ctx.weights.check_complete()
    table = Tensors([Header(path)], FAMILIES["qwen2"], {}, torch.float32).tensor(f"{name}.weight")
    ids, hidden = torch.tensor([3, 11], dtype=torch.int32), torch.randn(2, 64)
    torch.testing.assert_close(embedding(ids), table[ids.long()])
    torch.testing.assert_close(logits(hidden), hidden @ table.T, rtol=1e-5, atol=1e-4)
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight but not .*\.blocks"):
        ctx.weights.check_update([f"{name}.weight"])
