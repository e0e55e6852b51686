"""Bytes become float16 of the same value, in the order that products take; layouts have all."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from hotshoe_cuda.kernels import narrow

KINDS = {
    "int8": torch.int8,
    "fp8e5": torch.float8_e5m2,
    "fp8e4nv": torch.float8_e4m3fn,
}


def run(assembly: str, dtype: torch.dtype, **registers: int) -> dict[str, int]:
    """Run the few instructions of PTX that widening takes."""

    def value(name: str) -> int:
        return int(name, 0) if name[0].isdigit() else registers[name]

    def halves(word: int) -> np.ndarray:
        return np.array([word], np.uint32).view(np.float16)

    for line in re.findall(r"(?:mov|prmt|xor|sub|cvt)\S* [^;]*;", assembly):
        name, _, rest = line[:-1].partition(" ")
        if rest.startswith("{l, h}"):
            word = value(rest.split(", ")[-1])
            registers |= {"l": word & 0xFFFF, "h": word >> 16}
            continue
        target, *sources = rest.split(", ")
        found = [value(source) for source in sources]
        if name.startswith("mov"):
            registers[target] = found[0]
        elif name.startswith("prmt"):
            both = found[0].to_bytes(4, "little") + found[1].to_bytes(4, "little")
            chosen = bytes(both[found[2] >> 4 * i & 7] for i in range(4))
            registers[target] = int.from_bytes(chosen, "little")
        elif name.startswith("xor"):
            registers[target] = found[0] ^ found[1]
        elif name.startswith("sub"):
            registers[target] = int((halves(found[0]) - halves(found[1])).view(np.uint32)[0])
        else:
            two = torch.tensor([found[0] & 0xFF, found[0] >> 8], dtype=torch.uint8)
            registers[target] = int(two.view(dtype).half().numpy().view(np.uint32)[0])
    return registers


def floats(registers: dict[str, int], names: tuple[str, ...]) -> list[float]:
    words = np.array([registers[name] for name in names], np.uint32)
    return list(words.view(np.float16).astype(float))


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_keeps_its_value(kind: str) -> None:
    dtype = KINDS[kind]
    data = torch.randperm(256).to(torch.uint8)
    expected = data.view(dtype).double().numpy().reshape(-1, 2, 4)
    words = data.numpy().view(np.uint32).reshape(-1, 2)
    one, two = narrow.widening(kind, False), narrow.widening(kind, True)
    for (a, b), (first, second) in zip(words.tolist(), expected, strict=True):
        found = floats(run(one, dtype, **{"$2": a}), ("$0", "$1"))
        np.testing.assert_equal(found, first)
        found = floats(run(two, dtype, **{"$4": a, "$5": b}), ("$0", "$1", "$2", "$3"))
        np.testing.assert_equal(found, np.stack((first, second), 1).reshape(-1))


@pytest.mark.parametrize("layout", [narrow.key_bytes, narrow.value_bytes])
@pytest.mark.parametrize(("keys", "dim"), [(16, 64), (32, 128)])
def test_threads_have_all_bytes_once(layout, keys: int, dim: int) -> None:
    found = layout(2, keys, dim)
    bases = [*found.reg_bases, *found.lane_bases, *found.warp_bases]
    places = np.array(bases) @ [keys * dim, dim, 1]
    assert sorted(places.tolist()) == narrow.powers(1, 2 * keys * dim)
    # What one load brings lies together, 8 bytes or more.
    assert found.reg_bases[:3] == [[0, 0, 1], [0, 0, 2], [0, 0, 4]]
