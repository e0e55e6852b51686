"""Which files make a checkpoint, in which order, and what is refused."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hotshoe.engine.explain.fates import fates
from hotshoe.errors import CheckpointError
from hotshoe.layers.weights import Holder, Place, WeightTable
from hotshoe.loader import checkpoint, load_weights
from hotshoe.loader.checkpoint import update_weights
from hotshoe.loader.files import checkpoint_files
from hotshoe.loader.sources import Files, source_of


class Collector:
    """A weight table that remembers what it was fed."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        self.table = WeightTable()
        self.got: dict[str, torch.Tensor] = {}
        for name, shape in shapes.items():
            self.table.expect(name, shape, lambda t, n=name: self.got.__setitem__(n, t))

    def load(self, path: Path, load_format: str = "safetensors") -> dict[str, torch.Tensor]:
        load_weights(self.table, path, load_format, torch.float32, seed=3)
        return self.got


def shards(path: Path, numbers: list[int]) -> None:
    files = {f"w{n}": f"model-{n}-of-{len(numbers)}.safetensors" for n in numbers}
    for name, file in files.items():
        save_file({name: torch.full((2,), float(name[1:]))}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def test_shards_are_taken_in_natural_order(tmp_path: Path) -> None:
    shards(tmp_path, list(range(1, 12)))
    order = [int(f.name.split("-")[1]) for f in checkpoint_files(tmp_path)]
    assert order == list(range(1, 12))


def test_sharded_weights_arrive(tmp_path: Path) -> None:
    shards(tmp_path, [1, 2])
    got = Collector(w1=(2,), w2=(2,)).load(tmp_path)
    assert got["w1"].tolist() == [1, 1]
    assert got["w2"].tolist() == [2, 2]


def test_a_checkpoint_is_opened_again_while_it_is_what_was_loaded(tmp_path: Path) -> None:
    shards(tmp_path, [1, 2])
    collector = Collector(w2=(2,))
    table = collector.table
    place = Place(Holder("linear", "w", "float32", dict), "weight", (0, 2), ())
    table.expect("w1", (2,), lambda tensor: None, place=place)
    assert table.reopen() is None
    collector.load(tmp_path)
    assert table.reopen().tensor("w2").tolist() == [2, 2]
    update_weights(table, source_of([("w1", torch.zeros(2))]), check_only=True)
    assert table.reopen() is not None
    update_weights(table, source_of([("w1", torch.zeros(2))]))
    assert table.reopen() is None
    collector.load(tmp_path)
    os.utime(tmp_path / "model-1-of-2.safetensors", (1, 1))
    assert table.reopen() is None


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shards(tmp_path, [1, 2])
    (tmp_path / "model-2-of-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match="lacks shard model-2-of-2"):
        checkpoint_files(tmp_path)


def test_an_index_may_not_point_outside_its_directory(tmp_path: Path) -> None:
    index = {"weight_map": {"w": "../other.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="no file beside it"):
        checkpoint_files(tmp_path)


@pytest.mark.parametrize("other", ["consolidated", "adapter_model", "model.fp16"])
def test_other_files_beside_the_checkpoint_are_not_read(tmp_path: Path, other: str) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    save_file({"layers.0.w": torch.zeros(2)}, tmp_path / f"{other}.safetensors")
    assert Collector(w=(2,)).load(tmp_path)["w"].tolist() == [1, 1]


def test_files_of_any_name_are_read_where_there_is_nothing_else(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({name: torch.ones(2)}, tmp_path / f"{name}.safetensors")
    assert set(Collector(a=(2,), b=(2,)).load(tmp_path)) == {"a", "b"}


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(CheckpointError, match="pickle"):
        checkpoint_files(tmp_path)


@pytest.mark.parametrize(
    ("expected", "match"),
    [
        ({"w": (3,)}, r"shape \[2\]"),
        ({"w": (2,), "more": (1,)}, "lacks more"),
        ({}, "does not have"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path, expected, match: str) -> None:
    save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=match):
        Collector(**expected).load(tmp_path)


def test_ignored_tensors_are_skipped(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2), "x.inv_freq": torch.zeros(9)}, tmp_path / "model.safetensors")
    collector = Collector(w=(2,))
    collector.table.ignore([r"inv_freq$"])
    assert set(collector.load(tmp_path)) == {"w"}


def test_what_a_format_decodes_is_looked_at(tmp_path: Path) -> None:
    """At the start, in an update and by `explain`, which says how the file has it."""

    class Halves(Files):
        def names(self) -> list[str]:
            return [name for name in super().names() if name != "b"]

        def tensor(self, name: str) -> torch.Tensor:
            return torch.cat([super().tensor("a"), super().tensor("b")])

    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(2), "b": torch.ones(2)}, path)
    collector = Collector(a=(4,))
    collector.table.decode = lambda source: Halves([path])
    assert collector.load(tmp_path)["a"].tolist() == [0, 0, 1, 1]
    with pytest.raises(CheckpointError, match=r"^a cannot be replaced"):  # but its shape is right
        update_weights(collector.table, source_of(path), check_only=True)
    [fate], note = fates(collector.table, tmp_path, "safetensors")
    assert (fate.name, fate.stored, note) == ("a", "float32, 16 bits", "")


def test_dummy_weights_are_reproducible_and_differ(tmp_path: Path) -> None:
    shapes = {"a": (70, 3), "b": (70, 3), "norm": (8,)}
    first, again = (Collector(**shapes).load(tmp_path, "dummy") for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in shapes)
    assert not torch.equal(first["a"], first["b"])
    assert 0.01 < first["a"].std() < 0.03
    assert abs(first["norm"].mean() - 1) < 0.1


@pytest.mark.parametrize("name", ["s" * 300 + ".safetensors", "nul\0.safetensors"])
def test_a_name_that_no_file_can_have_is_a_missing_shard(tmp_path: Path, name: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(CheckpointError, match="lacks shard"):
        checkpoint_files(tmp_path)


def test_more_shards_than_any_checkpoint_has_are_refused(tmp_path: Path) -> None:
    index = {"weight_map": {f"w{n}": f"{n}.safetensors" for n in range(10_001)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="names 10001 files; at most 10000"):
        checkpoint_files(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_named_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bad: float
) -> None:
    monkeypatch.setattr(checkpoint, "CHUNK", 4)  # the bad one lies in the last of several
    values = torch.ones(3, 3)
    save_file({"a": values, "b": values.to(dtype, copy=True)}, tmp_path / "model.safetensors")
    shapes = {"a": (3, 3), "b": (3, 3)}
    args = (tmp_path, "safetensors", torch.float32, 3)
    load_weights(Collector(**shapes).table, *args, check_finite=True)
    values[2, 2] = bad
    broken = values.to(dtype)
    save_file({"a": torch.ones(3, 3), "b": broken}, tmp_path / "model.safetensors")
    load_weights(Collector(**shapes).table, *args)
    with pytest.raises(CheckpointError, match="b holds NaN or infinity"):
        load_weights(Collector(**shapes).table, *args, check_finite=True)


def test_files_are_looked_through_until_they_were_found_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    sound = checkpoint.is_finite
    monkeypatch.setattr(checkpoint, "is_finite", lambda t: looked.append(t.numel()) or sound(t))
    monkeypatch.setattr(checkpoint.checked, "FOLDER", tmp_path / "marks")
    args = (tmp_path, "safetensors", torch.float32, 3)

    def load(check: bool | None, **shapes: tuple[int, ...]) -> list[int]:
        looked.clear()
        load_weights(Collector(**shapes).table, *args, check_finite=check)
        return looked

    shapes = {"a": (2,), "b": (3,)}
    for second, values in enumerate((torch.ones(3), torch.zeros(3))):
        save_file({"a": torch.ones(2), "b": values}, tmp_path / "model.safetensors")
        os.utime(tmp_path / "model.safetensors", (second, second))  # clocks of disks are coarse
        assert load(False, **shapes) == []
        assert load(None, **shapes) == [2, 3]
        assert load(None, **shapes) == []
        assert load(True, **shapes) == [2, 3]
    bad = torch.full((3,), torch.inf)
    save_file({"a": torch.ones(2), "b": bad}, tmp_path / "model.safetensors")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="b holds NaN or infinity"):
            load(None, **shapes)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.float8_e4m3fn])
def test_every_float_can_be_looked_at(dtype: torch.dtype) -> None:
    values = torch.ones(5, 3)
    assert checkpoint.is_finite(values.to(dtype))
    assert checkpoint.is_finite(torch.empty(0, 3, dtype=dtype))
    values[0, 1] = float("nan")
    assert not checkpoint.is_finite(values.to(dtype))
    assert checkpoint.is_finite(torch.ones(3, dtype=torch.int8))


def test_a_stage_of_which_an_update_has_nothing_is_left_alone(tmp_path: Path) -> None:
    """Where another stage has it; else nobody would notice that it is for another model."""
    save_file({"l.1.w": torch.ones(2)}, tmp_path / "model.safetensors")
    own = Collector(w=(2,))
    own.table.ignore([r"^l\."])
    with pytest.raises(CheckpointError, match="no tensor that this model uses"):
        update_weights(own.table, source_of(tmp_path))
    own.table.elsewhere([r"^l\.1\."])
    update_weights(own.table, source_of(tmp_path))
    assert own.got == {}
