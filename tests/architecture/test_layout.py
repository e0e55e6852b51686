"""Tests lie where their subjects lie."""

from pathlib import Path

MIRRORED_SHARE = 0.8
TEST_SHARE = 0.8
FOLDERS = {
    "core/hotshoe": "tests/core",
    "platforms/cpu/hotshoe_cpu": "tests/platforms/cpu",
    "platforms/cuda/hotshoe_cuda": "tests/platforms/cuda",
    "platforms/rocm/hotshoe_rocm": "tests/platforms/rocm",
    "platforms/triton/hotshoe_triton": "tests/platforms/triton",
    "plugins/bench/hotshoe_bench": "tests/plugins/bench",
    "plugins/conformance/hotshoe_conformance": "tests/plugins/conformance",
    "plugins/demo/hotshoe_demo": "tests/plugins/demo",
    "plugins/models/hotshoe_models": "tests/plugins/models",
    "plugins/observability/hotshoe_observability": "tests/plugins/observability",
    "plugins/parsers/hotshoe_parsers": "tests/plugins/parsers",
    "plugins/quantization/hotshoe_quantization": "tests/plugins/quantization",
    "plugins/server/hotshoe_server": "tests/plugins/server",
    "plugins/executor-ray/hotshoe_ray": "tests/plugins/executor_ray",
    "plugins/speculation/hotshoe_speculation": "tests/plugins/speculation",
    "plugins/structured-output/hotshoe_structured_output": "tests/plugins/structured_output",
    "plugins/ui/hotshoe_ui": "tests/plugins/ui",
}


def subjects(root: Path) -> dict[Path, Path]:
    """Return every module that has something to test, with the place of its tests."""
    found = {}
    for folder, tests in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            inner = path.relative_to(root / folder)
            if not path.name.startswith("__"):
                found[path] = root / tests / inner.parent / f"test_{inner.name}"
    return found


def test_modules_have_tests_of_the_same_name(root: Path) -> None:
    found = subjects(root)
    assert len(found) > 80
    missing = [str(p.relative_to(root)) for p, test in found.items() if not test.exists()]
    share = 1 - len(missing) / len(found)
    assert share >= MIRRORED_SHARE, (f"{share:.2f}", missing)


def test_lines_of_tests_keep_up_with_those_of_code(root: Path, sources) -> None:
    tests = sum(p.read_text().count("\n") for p in (root / "tests").rglob("*.py"))
    assert tests >= TEST_SHARE * sum(source.text.count("\n") for source in sources)
