"""Packages from outside that are older, newer or defective: named with their cause, never in the
way of the others."""

import json
import re
import signal
import warnings
from types import SimpleNamespace

import pytest

from hotshoe.cli.main import main
from hotshoe.plugins import HOOK_API

METADATA = "Metadata-Version: 2.1\nName: hotshoe-x-{name}\nVersion: 1.0\n"
NAMES = """
from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = {api}


@hookimpl
def hotshoe_named_models():
    return {{"{name}-model": "/nowhere/{name}"}}
"""
PLATFORM = """
from hotshoe.platform import Available, DeviceFacts, Platform
from hotshoe.plugins import hookimpl
from hotshoe.slots import Candidate, accept

HOTSHOE_HOOK_API = {api}


class Device(Platform):
    name = "{name}"

    def probe(self):
        return Available(score=-1)

    def facts(self):
        return DeviceFacts("{name}", "cpu", "a device", "any", 1 << 30, 1)

    def candidates(self):
        {body}


@hookimpl
def hotshoe_platforms():
    return {{"{name}": "x_{name}:Device"}}
"""
SOURCES = {
    "previous": NAMES.replace("{api}", str(HOOK_API - 1)),
    "span": NAMES.replace("{api}", f"({HOOK_API}, {HOOK_API + 1})"),
    "next": NAMES.replace("{api}", str(HOOK_API + 1)),
    "crashing": "import no_such_vendor_library\n",
    "misspelt": NAMES.replace("named_models", "named_model").replace("{api}", str(HOOK_API)),
    "raising": NAMES.replace("return", "1 / 0; return").replace("{api}", str(HOOK_API)),
    "twin_a": NAMES.replace("{name}-model", "twin").replace("{api}", str(HOOK_API)),
    "twin_b": NAMES.replace("{name}-model", "twin").replace("{api}", str(HOOK_API)),
    "faulty": PLATFORM.replace("{body}", "raise OSError('libvendor.so.6 is missing')"),
    "liar": PLATFORM.replace(
        "{body}",
        'return [Candidate("rms_norm", "lie", lambda s, f: accept(9), "no_such_kernels:build")]',
    ),
    "older": PLATFORM.replace("{api}", str(HOOK_API - 1)).replace(
        "{body}", 'return [Candidate("rms_norm", "eager", lambda s, f: accept(9), "m:f")]'
    ),
    "twins": PLATFORM.replace(
        "{body}",
        'return 2 * [Candidate("rms_norm", "twin", lambda s, f: accept(9), "m:f")]',
    ),
    "nan": PLATFORM.replace(
        "{body}",
        'return [Candidate("rms_norm", "nan", lambda s, f: accept(9), '
        "lambda s, f: lambda x, w: x * float('nan'))]",
    ),
    "raiser": PLATFORM.replace(
        "{body}",
        'return [Candidate("rms_norm", "zero", lambda s, f: accept(9), '
        "lambda s, f: lambda x, w: x / (0 // 0))]",
    ),
    "crash": PLATFORM.replace(
        "{body}",
        'return [Candidate("rms_norm", "crash", lambda s, f: accept(9), '
        'lambda s, f: lambda x, w: __import__("ctypes").string_at(0))]',
    ),
    "exits": PLATFORM.replace(
        "{body}",
        'return [Candidate("embedding", "exit", lambda s, f: accept(9), '
        "lambda s, f: lambda *a: exit(0))]",
    ),
}


@pytest.fixture(scope="module")
def crowd(shared):
    """An installation with all of them at once, put there as pip would, which takes long."""
    for name, source in SOURCES.items():
        (shared.site / f"x_{name}.py").write_text(source.format(name=name, api=HOOK_API))
        info = shared.site / f"hotshoe_x_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(METADATA.format(name=name))
        (info / "entry_points.txt").write_text(f"[hotshoe]\n{name} = x_{name}\n")
    return shared


@pytest.fixture
def hotshoe(crowd, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """The command in this process, which finds the crowd, too, and need not import all anew."""
    monkeypatch.syspath_prepend(str(crowd.site))

    def run(*words: str) -> SimpleNamespace:
        with warnings.catch_warnings():  # about packages of the crowd that are old
            warnings.simplefilter("ignore", DeprecationWarning)
            returncode = main(list(words))
        out, err = capfd.readouterr()
        return SimpleNamespace(returncode=returncode, stdout=out, stderr=err)

    return run


@pytest.fixture(scope="module")
def listed(crowd) -> dict[str, dict[str, object]]:
    document = json.loads(crowd.ok("hotshoe", "plugins", "--json"))
    assert any("'twin_a' and 'twin_b' both offer 'twin'" in text for text in document["conflicts"])
    return {p["plugin"]: p for p in document["plugins"]} | {"offers": document["offers"]}


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("next", f"built for hook API {HOOK_API + 1}, but this hotshoe"),
        ("crashing", "ModuleNotFoundError: No module named 'no_such_vendor_library'"),
        ("misspelt", "unknown hook hotshoe_named_model; did you mean hotshoe_named_models?"),
        ("raising", "it failed in hotshoe_named_models: ZeroDivisionError"),
    ],
)
def test_defective_plugins_are_listed_with_their_cause(listed, name: str, cause: str) -> None:
    assert cause in listed[name]["error"]


def test_a_package_for_the_version_before_works_and_says_that_it_will_not(listed) -> None:
    assert listed["previous"]["error"] is None
    assert f"hook API {HOOK_API - 1} is deprecated" in listed["previous"]["warning"]
    assert "previous-model" in listed["offers"]["models"]


GROWN = """
from dataclasses import dataclass

from hotshoe.plugins import HOOK_API, PluginManager
from hotshoe.plugins.platforms import candidates_of, choose_platform
from hotshoe.slots import SLOTS, Selector
from hotshoe.slots.versions import since


@dataclass(frozen=True)
class Grown:
    size: int
    twist: bool = since(HOOK_API, False)


plugins = PluginManager()
platform = choose_platform(plugins, "older")
selector = Selector(SLOTS, candidates_of(platform, plugins), platform.facts())
for spec in (Grown(4), Grown(4, twist=True)):
    decision = selector.decide("rms_norm", spec)
    print(decision.chosen, dict(decision.others).get("eager"))
"""


def test_a_package_for_the_version_before_is_not_asked_for_what_is_new(crowd) -> None:
    """As if a field had come with this version: its candidate says yes to everything."""
    known, new = crowd.ok("python", "-c", GROWN).splitlines()
    assert known.startswith("eager ")
    assert new.startswith("reference ")
    assert f"built for hook API {HOOK_API - 1} and does not know twist=True" in new
    assert f"install a version of its package for hook API {HOOK_API}" in new


def test_two_candidates_of_one_name_are_named_and_neither_is_taken(crowd, hotshoe) -> None:
    words = ("generate", "demo", "-p", "The", "--max-tokens", "2", "--platform", "twins")
    done = hotshoe(*words)
    assert done.returncode == 0, done.stderr
    assert "slot rms_norm: twin is defective: two candidates have this name" in done.stderr
    words = ("conformance", "--quick", "--slot", "rms_norm", "--platform", "twins")
    done = crowd.run("hotshoe", *words)
    assert done.returncode == 1
    assert "rms_norm/twin: two candidates have this name" in done.stdout


def test_a_package_for_this_version_and_the_next_works(listed) -> None:
    assert listed["span"]["error"] is None
    assert listed["span"]["warning"] is None
    assert {"demo", "span-model"} <= set(listed["offers"]["models"])
    assert "twin" not in listed["offers"]["models"]


def test_the_engine_runs_beside_them_and_names_them(hotshoe) -> None:
    words = ("generate", "demo", "-p", "The", "--max-tokens", "2", "--platform", "cpu")
    done = hotshoe(*words)
    assert done.returncode == 0, done.stderr
    for name in ("next", "crashing", "misspelt"):
        assert f"plugin {name} is broken: " in done.stderr


def test_a_platform_that_fails_is_named_and_not_replaced(hotshoe) -> None:
    done = hotshoe("explain", "demo", "--platform", "faulty")
    assert done.returncode == 2
    assert "platform faulty is defective: OSError: libvendor.so.6 is missing" in done.stderr


def test_a_candidate_that_lies_is_named_and_passed_over(crowd, hotshoe) -> None:
    words = ("generate", "demo", "-p", "The", "--max-tokens", "2")
    done = hotshoe(*words, "--platform", "liar")
    assert done.returncode == 0, done.stderr
    assert "slot rms_norm: lie is defective: it accepted, but could not be built" in done.stderr
    forced = hotshoe(*words, "--platform", "liar", "--kernel", "rms_norm=lie")
    assert forced.returncode == 2
    assert "candidate lie: it accepted, but could not be built" in forced.stderr
    conformance = ("conformance", "--quick", "--slot", "rms_norm", "--platform")
    done = crowd.run("hotshoe", *conformance, "liar")
    assert done.returncode == 1
    assert "building raises ModuleNotFoundError: No module named 'no_such_kernels'" in done.stdout


def test_a_candidate_that_gives_nan_fails_requests_and_not_the_engine(crowd, hotshoe) -> None:
    words = ("generate", "demo", "-p", "The", "--max-tokens", "2", "--platform", "nan")
    done = hotshoe(*words)
    assert done.returncode == 1
    assert "no token can be sampled: the logits hold NaN" in done.stderr
    assert "Traceback" not in done.stderr
    words = ("conformance", "--quick", "--slot", "rms_norm", "--platform", "nan")
    done = crowd.run("hotshoe", *words)
    assert done.returncode == 1
    assert "WRONG rms_norm/nan: y: nan instead of" in done.stdout


@pytest.mark.parametrize(
    ("platform", "slot", "candidate", "raised"),
    [
        ("raiser", "rms_norm", "zero", "ZeroDivisionError"),
        pytest.param("exits", "embedding", "exit", "SystemExit", marks=pytest.mark.slow),
    ],
)
def test_a_candidate_that_fails_in_a_call_is_named(
    hotshoe, platform: str, slot: str, candidate: str, raised: str
) -> None:
    words = ("generate", "demo", "-p", "The", "--max-tokens", "2", "--platform", platform)
    done = hotshoe(*words)
    assert done.returncode == 1
    who = f"candidate {candidate} of slot {slot} (hotshoe-x-{platform} 1.0) raised {raised}"
    assert f"error: {who}" in done.stderr, "at start"
    assert f"--kernel {slot}=reference does without it" in done.stderr
    assert "Traceback" not in done.stderr
    done = hotshoe(*words, "--kernel", f"{slot}=reference")
    assert done.returncode == 0, done.stderr


def test_a_candidate_that_takes_the_process_down_shows_where(crowd) -> None:
    words = ("generate", "demo", "-p", "The", "--max-tokens", "2", "--platform", "crash")
    done = crowd.run("hotshoe", *words)
    assert done.returncode == -signal.SIGSEGV
    assert re.search(r"Segmentation fault.*x_crash\.py", done.stderr, re.DOTALL)
