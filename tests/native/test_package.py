"""Choice of the instruction set: what can run is reported with reasons, misuse is refused."""

import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import hotshoe_native
from hotshoe_native._isa import ISAS

#: Types of ELF program headers (System V ABI and its GNU extensions).
PT_GNU_STACK, PT_GNU_RELRO = 0x6474E551, 0x6474E552
PT_DYNAMIC, DT_FLAGS, DF_BIND_NOW = 2, 30, 8


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
    assert flags["dotprod"] == ["-march=armv8.2-a+dotprod"]
    assert flags["i8mm_bf16"] == ["-march=armv8.2-a+dotprod+i8mm+bf16"]
    assert {"-mavx512bw", "-mavx512vnni", "-mavx512bf16", "-mamx-int8"} <= set(flags["amx"])


@pytest.mark.skipif(platform.system() != "Linux", reason="needs Linux: other systems have no ELF")
def test_libraries_are_hardened() -> None:
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
        assert dynamic_flags(data, headers, table, size) & DF_BIND_NOW, library
        assert b"\0__stack_chk_fail\0" in data, library
        if platform.libc_ver()[0] == "glibc":  # others do not check sizes of copies
            assert b"\0__memcpy_chk\0" in data, library


def dynamic_flags(data: bytes, headers: list[tuple[int, int]], table: int, size: int) -> int:
    """Return the flags of the dynamic section (DT_FLAGS)."""
    number = [kind for kind, _ in headers].index(PT_DYNAMIC)
    [offset] = struct.unpack_from("<Q", data, table + size * number + 8)
    entries = struct.iter_unpack("<QQ", data[offset:][: 16 * 64])
    return next(value for tag, value in entries if tag == DT_FLAGS)


#: Compiles and links nothing, but leaves files behind; one source fails for one instruction set.
COMPILER = """#!{python}
import sys
words = sys.argv[1:]
failing = {failing!r}
if any(w.endswith("/norm.cpp") for w in words) and f"-DHOTSHOE_MODULE=_{{failing}}" in words:
    sys.exit("norm.cpp: no such instruction")
if "-o" in words:
    open(words[words.index("-o") + 1], "w").close()
"""


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Build with that compiler."""
    if platform.machine() != "x86_64":
        pytest.skip("other machines have no instruction sets but one")

    def build(failing: str, *more: str) -> subprocess.CompletedProcess[str]:
        compiler = tmp_path / "compiler"
        compiler.write_text(COMPILER.format(python=sys.executable, failing=failing))
        compiler.chmod(0o755)
        for tool in ("CC", "CXX", "LDSHARED", "LDCXXSHARED"):
            monkeypatch.setenv(tool, str(compiler))
        places = [f"--build-lib={tmp_path}/lib", f"--build-temp={tmp_path}/temp"]
        command = [sys.executable, "setup.py", "-q", "build_ext", *places, *more]
        root = Path(__file__).resolve().parents[2]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)

    return build


def test_a_source_that_does_not_compile_costs_its_instruction_set_alone(
    built, tmp_path: Path
) -> None:
    done = built("avx2")
    assert done.returncode == 0, done.stderr
    assert "hotshoe_native._avx2 is left out: csrc" in done.stderr
    made = {path.name.split(".")[0] for path in (tmp_path / "lib/hotshoe_native").iterdir()}
    assert made >= {"_generic", "_avx512"}
    assert "_avx2" not in made


@pytest.mark.parametrize(("failing", "more"), [("generic", ()), ("avx2", ("--isa=avx2",))])
def test_what_is_needed_or_asked_for_is_not_left_out(built, failing: str, more) -> None:
    done = built(failing, *more)
    assert done.returncode != 0
    assert "cannot compile csrc" in done.stderr
