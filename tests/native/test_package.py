"""Choice of the instruction set: what can run is reported with reasons, misuse is refused."""

import platform
import struct
from pathlib import Path

import pytest

import hotshoe_native
from hotshoe_native._isa import ISAS

#: Types of ELF program headers (System V ABI and its GNU extensions).
PT_GNU_STACK, PT_GNU_RELRO = 0x6474E551, 0x6474E552


def test_every_instruction_set_is_listed_with_a_reason() -> None:
    statuses = hotshoe_native.available()
    assert [s.isa for s in statuses] == [isa.name for isa in ISAS]
    assert all(s.reason for s in statuses)
    assert statuses[0] == ("generic", True, "ready")


def test_load_takes_the_best_usable_default() -> None:
    defaults = {isa.name for isa in ISAS if isa.default}
    best = [s.isa for s in hotshoe_native.available() if s.usable and s.isa in defaults][-1]
    assert hotshoe_native.load().info()["isa"] == best


@pytest.mark.parametrize("name", [s.isa for s in hotshoe_native.available() if s.usable])
def test_load_by_name(name: str) -> None:
    assert hotshoe_native.load(name).info()["isa"] == name


def test_unknown_and_unusable_names_list_the_choices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match=r"unknown instruction set 'avx9'.*generic \(ready\)"):
        hotshoe_native.load("avx9")
    monkeypatch.setattr(hotshoe_native, "_cpu_features", lambda: frozenset({"avx2"}))
    with pytest.raises(ValueError, match=r"'avx2'.*lacks.*fma.*generic \(ready\)"):
        hotshoe_native.load("avx2")


def test_compile_flags_spell_features_as_compilers_do() -> None:
    flags = {isa.name: isa.compile_flags for isa in ISAS}
    assert flags["generic"] == []
    assert {"-mavx512bw", "-mavx512vnni", "-mavx512bf16", "-mamx-int8"} <= set(flags["amx"])


@pytest.mark.skipif(platform.system() != "Linux", reason="needs Linux: other systems have no ELF")
def test_no_library_has_a_stack_that_executes() -> None:
    libraries = sorted(Path(hotshoe_native.__file__).parent.glob("*.so"))
    assert libraries
    for library in libraries:
        data = library.read_bytes()
        assert data[:6] == b"\x7fELF\x02\x01", library  # 64 bits, little-endian
        table = struct.unpack_from("<Q", data, 32)[0]
        size, count = struct.unpack_from("<HH", data, 54)
        headers = [struct.unpack_from("<II", data, table + size * n) for n in range(count)]
        flags = dict(headers)
        assert not flags[PT_GNU_STACK] & 1, library
        assert PT_GNU_RELRO in flags, library
