"""Kept weights: what comes back is what was made, of these numbers, by this recipe; or nothing."""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.layers.formats import OnlineFormat
from hotshoe.loader import kept
from hotshoe.loader.kept import KeptFolder, KeptFormat, digest_of, kept_files, kept_format

BIG = 2**30
LAYER = "model.layers.0.mlp.up_proj"


class Quantizer(OnlineFormat):
    """Halves numbers, makes some of four bits and leaves a bias."""

    def __init__(self, recipe: str | None = "halves") -> None:
        super().__init__()
        self.calls, self._recipe = 0, recipe

    def recipe(self, layer: str) -> str | None:
        return self._recipe

    def canonical(
        self, layer: str, tensors: Mapping[str, Sequence[Tensor]]
    ) -> Mapping[str, Sequence[Tensor]]:
        self.calls += 1
        parts = tensors["weight"]
        made = {
            "weight": [(part * 20).to(torch.int8) & 15 for part in parts],
            "signed": [(part * 20).to(torch.int8) for part in parts],
            "scale": [part[:, :0] / 2 for part in parts] + [part.amax() for part in parts],
        }
        return dict(tensors) | made


def pieces(*sizes: tuple[int, int]) -> dict[str, list[Tensor]]:
    weights = [torch.randn(size, dtype=torch.bfloat16) for size in sizes]
    return {"weight": weights, "bias": [torch.randn(size[0]) for size in sizes]}


def same(found: Mapping[str, Sequence[Tensor]], wanted: Mapping[str, Sequence[Tensor]]) -> bool:
    pairs = [zip(found[name], wanted[name], strict=True) for name in wanted]
    exact = all(a.dtype == b.dtype and torch.equal(a, b) for pair in pairs for a, b in pair)
    return exact and found.keys() == wanted.keys()


def test_what_comes_back_is_what_was_made(tmp_path: Path) -> None:
    for _ in range(20):
        tensors = pieces((4, 6), (3, 6), (2, 7))
        first, second = Quantizer(), Quantizer()
        made = KeptFormat(first, KeptFolder(tmp_path / "a", BIG)).canonical(LAYER, tensors)
        found = KeptFormat(second, KeptFolder(tmp_path / "a", BIG)).canonical("other", tensors)
        assert (first.calls, second.calls) == (1, 0)
        assert same(made, Quantizer().canonical(LAYER, tensors))
        assert same(found, made)
        assert found["bias"] is tensors["bias"]
    assert (tmp_path / "a").stat().st_mode & 0o77 == 0


def test_nothing_comes_back_that_was_made_of_something_else() -> None:
    tensors = pieces((4, 6))
    weight, bias = tensors["weight"][0], tensors["bias"]
    changed = weight.clone()
    changed[2, 3] += 1
    others = [
        digest_of("thirds", tensors),
        digest_of("halves", {"weight": [changed], "bias": bias}),
        digest_of("halves", {"weight": [weight.view(6, 4)], "bias": bias}),
        digest_of("halves", {"weight": [weight.view(torch.float16)], "bias": bias}),
        digest_of("halves", {"weight": [weight[:2], weight[2:]], "bias": bias}),
        digest_of("halves", {"weight": [weight]}),
    ]
    own = digest_of("halves", tensors)
    long = torch.zeros(3 * kept.SPAN, dtype=torch.int8)
    for place in (0, kept.SPAN, -1):  # in every span
        spans = long.clone()
        spans[place] = 1
        others.append(digest_of("halves", {"weight": [spans]}))
    assert len({own, *others}) == 10
    # Where a part of a larger matrix lies is no matter.
    wide = torch.zeros(4, 9, dtype=torch.bfloat16)
    wide[:, 2:8] = weight
    assert digest_of("halves", {"weight": [wide[:, 2:8]], "bias": bias}) == own


def test_what_is_quick_is_not_kept(tmp_path: Path) -> None:
    inner = Quantizer(recipe=None)
    keeping = KeptFormat(inner, KeptFolder(tmp_path / "a", BIG))
    for _ in range(2):
        keeping.canonical(LAYER, pieces((4, 6)))
    assert inner.calls == 2
    assert not (tmp_path / "a").exists()


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix == ".safetensors"}


def test_what_was_unused_for_longest_goes_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(5000))
    left = tmp_path / "hotshoe-killed.part"
    left.write_bytes(bytes(2000))
    os.utime(left, (1, 1))
    known = [pieces((8, 64)) for _ in range(3)]
    for number, tensors in enumerate(known):
        KeptFormat(Quantizer(), KeptFolder(tmp_path, BIG)).canonical(LAYER, tensors)
        file = tmp_path / f"{digest_of('halves', tensors)}.safetensors"
        os.utime(file, (10 + number, 10 + number))
    size = file.stat().st_size
    folder = KeptFolder(tmp_path, 3 * size)
    keeping = KeptFormat(Quantizer(), folder)
    keeping.canonical(LAYER, known[0])
    new = pieces((8, 64))
    keeping.canonical(LAYER, new)
    own = {f"{digest_of('halves', tensors)}.safetensors" for tensors in (known[0], known[2], new)}
    assert entries(tmp_path) == {"model.safetensors"} | own
    assert not left.exists()
    assert [path.name for path in kept_files(tmp_path)] == sorted(own)


def test_a_model_beyond_the_limit_keeps_a_part_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = [pieces((8, 64)) for _ in range(4)]
    KeptFormat(Quantizer(), KeptFolder(tmp_path, BIG)).canonical(LAYER, tensors[0])
    [size] = [path.stat().st_size for path in tmp_path.iterdir()]
    inner = Quantizer()
    keeping = KeptFormat(inner, KeptFolder(tmp_path, 2 * size + 10))
    with caplog.at_level(logging.INFO):
        for each in tensors:
            assert same(keeping.canonical(LAYER, each), Quantizer().canonical(LAYER, each))
    assert inner.calls == 3
    assert len(entries(tmp_path)) == 2
    said = [record.getMessage() for record in caplog.records]
    assert [f"are taken from {tmp_path}" in said[0], "quantization_cache_bytes is" in said[1]]
    assert len(said) == 2


@pytest.mark.parametrize("damage", ["cut", "text", "renamed", "order"])
def test_a_damaged_entry_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    tensors = pieces((4, 6), (4, 6))
    made = KeptFormat(Quantizer(), KeptFolder(tmp_path, BIG)).canonical(LAYER, tensors)
    [file] = tmp_path.iterdir()
    raw = file.read_bytes()
    damaged = {
        "cut": raw[:-200],
        "text": b"text",
        "renamed": raw.replace(b"signed/0", b"signed/x"),
        "order": raw.replace(b"signed/0", b"signed/2"),
    }
    file.write_bytes(damaged[damage])
    inner = Quantizer()
    found = KeptFormat(inner, KeptFolder(tmp_path, BIG)).canonical(LAYER, tensors)
    assert inner.calls == 1
    assert same(found, made)
    assert "a kept weight is made again" in caplog.text
    assert file.read_bytes() == raw


def test_a_disk_without_room_stops_no_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept.os, "fsync", fail)
    inner, tensors = Quantizer(), pieces((4, 6))
    keeping = KeptFormat(inner, KeptFolder(tmp_path, BIG))
    for _ in range(2):
        assert same(keeping.canonical(LAYER, tensors), Quantizer().canonical(LAYER, tensors))
    assert inner.calls == 2
    assert caplog.text.count("No space left on device") == 1
    assert not list(tmp_path.iterdir())


def test_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    (tmp_path / "file").write_text("")
    for path, message in (
        (open_folder, "quantization_cache_dir .*open: others may write to it"),
        (tmp_path / "file", "quantization_cache_dir .*file: File exists; name another"),
        (tmp_path / "file" / "a", "quantization_cache_dir .*a: Not a directory; name another"),
    ):
        with pytest.raises(ConfigError, match=message):
            KeptFormat(Quantizer(), KeptFolder(path, BIG)).canonical(LAYER, pieces((4, 6)))
    for path in (tmp_path / "none", open_folder):
        with pytest.raises(ConfigError, match="has no quantized weights; start an engine"):
            kept_files(path)


def test_a_method_that_keeps_nothing_is_refused(tmp_path: Path) -> None:
    config = EngineConfig(quantization_cache_dir=str(tmp_path))
    assert isinstance(kept_format(Quantizer(), "halves", config), KeptFormat)
    with pytest.raises(ConfigError, match="quantization_cache_dir keeps nothing of int8"):
        kept_format(OnlineFormat(), "int8", config)
