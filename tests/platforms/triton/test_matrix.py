"""Every kernel compiles, as shipped, for every architecture, and fits its shared memory.

The compiler runs in a process of its own, since this one may interpret kernels instead. A quick
subset of cases runs always, all of them in the slow tests.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from triton.backends import backends

from hotshoe_triton import fp4, matrix
from hotshoe_triton.cases import CASES, LATENT, Case
from hotshoe_triton.delta_cases import DELTA
from hotshoe_triton.device import ARCHS, FNUZ, OCP
from hotshoe_triton.sparse_cases import COMPRESSED, SPARSES
from hotshoe_triton.state_cases import SPACES

#: Quick cases are compiled for one architecture; what ROCm offers, its own tests compile.
QUICK = ("sm_90",)
#: Bytes of a thread that may be spilled; more would cost time in every loop.
MAX_SPILLED = 160
#: Queries of 512 latent numbers leave registers little room; on Hopper other tiles are slower.
LATENTS = {
    "sm_80": ("mixed 128x512 int8 cache",),
    "sm_90": (
        *("decode 128x512", "mixed 128x512", "mixed 16x512", "mixed 16x512 float16"),
        *("decode 128x512 e4m3 cache", "mixed 128x512 e4m3 cache", "mixed 16x512 e4m3 cache"),
        *("decode 128x512 int8 cache", "mixed 128x512 int8 cache"),
        *("decode 64x512 not turned", "mixed 64x512 not turned"),
    ),
    **dict.fromkeys(
        ("gfx90a", "gfx942", "gfx950"), ("decode 16x512 float32", "mixed 16x512 float32")
    ),
    **dict.fromkeys(
        ("gfx1100", "gfx1151"),
        tuple(f"{kind} {name}" for kind in ("decode", "mixed") for name in LATENT),
    ),
    **dict.fromkeys(
        ("gfx1200", "gfx1201"),
        tuple(
            f"{kind} {name}"
            for kind in ("decode", "mixed")
            for name in LATENT
            if "x512" in name and "not turned" not in name
        ),
    ),
}
#: Chunks of wide states on parts whose matrix units keep operands in registers twice. Elsewhere the
#: next chunk of float32, which is on its way, takes them.
CHUNKS = {
    **dict.fromkeys(("gfx1100", "gfx1151"), tuple(SPACES)),
    **dict.fromkeys(
        ("gfx1200", "gfx1201"), ("32x64x256", "32x64x128 float16", "32x64x128 float32")
    ),
    **dict.fromkeys(
        (
            name
            for name, arch in ARCHS.items()
            if arch.backend == "cuda" and arch.shared_bytes > 100 << 10
        ),
        ("32x64x128 float32",),
    ),
}
#: Chunks of the gated delta rule on parts whose matrix units keep operands in registers twice.
DELTAS = {
    **dict.fromkeys(("gfx1100", "gfx1151"), tuple(DELTA)),
    **dict.fromkeys(("gfx1200", "gfx1201"), ("8/4x64 float32",)),
}
#: As LATENTS: the same queries, over gathered rows.
CHOSEN = {
    "sm_90": ("128x512", "128x512 e4m3 cache", "64x512 not turned"),
    **dict.fromkeys(("gfx1100", "gfx1151"), tuple(SPARSES)),
    **dict.fromkeys(("gfx1200", "gfx1201"), ("128x512 e4m3 cache",)),
}
#: Known to spill more: three loops over heads of 256 channels, 8-bit products of the one tile that
#: --batch-invariant takes, and two halves of packed 8-bit words for 64 rows, are too much for these
#: registers.
SPILLING = {(arch, f"latent {name}") for arch, names in LATENTS.items() for name in names} | {
    *((arch, f"space prompt {name}") for arch, names in CHUNKS.items() for name in names),
    *((arch, f"delta prompt {name}") for arch, names in DELTAS.items() for name in names),
    *(
        (arch, f"chosen {name} {tokens}")
        for arch, names in CHOSEN.items()
        for name in names
        for tokens in (1, 64)
    ),
    *(
        (arch, f"entries {name} {tokens}")
        for arch in ("gfx1100", "gfx1151")
        for name in COMPRESSED
        for tokens in (1, 64)
    ),
    *(("sm_90", f"entries 64x512 of 4 {tokens}") for tokens in (1, 64)),
    *(
        (arch, name)
        for arch in ("gfx1100", "gfx1151")
        for name in (
            "attention mixed 16/8x256 window cap",
            "trees 16/8x256 cap",
            "linear one tile int8",
        )
    ),
    *(
        (arch, f"index 64x128 float32 {n}")
        for arch in ("gfx1100", "gfx1151", "gfx1200", "gfx1201")
        for n in (1, 64)
    ),
}


#: How Triton's builds call the compilers that they bring.
COMPILERS = {"cuda": "nvidia", "hip": "amd"}


def need_compiler(arch: str) -> None:
    name = COMPILERS[ARCHS[arch].backend]
    if name not in backends:
        pytest.skip(f"this build of Triton has no compiler {name} for {arch}")


def table(*arguments: str) -> list[dict[str, object]]:
    """Run the tool and return its rows."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "hotshoe_triton.matrix", "--json", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == any(row["fault"] for row in rows)
    return rows


def check(rows: list[dict[str, object]], arch: str, names: set[str]) -> None:
    """Everything compiled and fits; only cases of formats that the hardware lacks are left out."""
    assert [row for row in rows if row["fault"]] == []
    assert {row["arch"] for row in rows} == {arch}
    missing = names - {row["case"] for row in rows}
    lacking = {OCP: "no such format", FNUZ: "fp8 blocks", "": "fp8"}[ARCHS[arch].fp8]
    floats = {
        name
        for form, (weight, _) in fp4.FORMS.items()
        for name in names
        if name.startswith((f"linear {form}", f"moe {form}"))
        and weight.group_size not in fp4.SCALED.get(arch, ())
    }
    no_cache = {"cuda": "e4m3 cache", "hip": "no such cache"}[ARCHS[arch].backend]
    no_cache = no_cache if not ARCHS[arch].fp8 else "no such cache"
    if ARCHS[arch].family == "rdna":
        no_cache = "int8 cache"
    assert missing == floats | {n for n in names if lacking in n or no_cache in n}
    assert all(row["shared_bytes"] <= ARCHS[arch].shared_bytes for row in rows)
    assert all(row["registers"] for row in rows)
    spilled = {(row["arch"], row["case"]) for row in rows if row["spilled_bytes"] > MAX_SPILLED}
    assert spilled == {pair for pair in SPILLING if pair in {(r["arch"], r["case"]) for r in rows}}


@pytest.mark.parametrize("arch", QUICK)
def test_quick_cases_compile(arch: str) -> None:
    need_compiler(arch)
    check(table("--arch", arch), arch, {case.name for case in CASES if case.quick})


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_all_cases_compile(arch: str) -> None:
    need_compiler(arch)
    check(table("--arch", arch, "--all"), arch, {case.name for case in CASES})


@pytest.mark.slow
def test_kernels_are_compiled_once_for_any_number_of_requests() -> None:
    need_compiler("sm_90")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("variants.py"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    found = json.loads(done.stdout)
    wanted = {"latent_decode 0", "latent_prefill 1", "sparse_attend 2", "index_choose 3"}
    assert wanted | {"compress 7", "tree_attention 8"} <= set(found)
    # Few pieces of a tree's keys are joined otherwise than many.
    assert {kernel: count for kernel, count in found.items() if count != 1} == {"join_pieces 8": 2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--case", "nothing"], "names contains 'nothing'; --all adds"),
        (["--tuned", "nowhere.json"], "there is no file nowhere.json"),
        (["--tuned", __file__], "test_matrix.py is no table of tuned configurations"),
    ],
)
def test_what_selects_nothing_is_no_success(words: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        matrix.main(["--arch", "sm_90", *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_table_for_people() -> None:
    row = matrix.Row("sm_90", "norm", "rms_norm", 8, 3, 38, 0, 32)
    assert "38 regs     0 spilled" in matrix.line(row)
    assert matrix.line(row).rstrip().endswith("32 shared")


def test_case_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert {type(case) for case in CASES} == {Case}
