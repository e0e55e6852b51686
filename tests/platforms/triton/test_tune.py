"""The tuner's search and its table, with times that a test makes up; measuring needs a GPU."""

import json
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.platforms.triton.conftest import device_facts

from hotshoe.cli.parser import Parser
from hotshoe.config import EngineConfig
from hotshoe.engine.explain import explanation as explaining
from hotshoe.errors import ConfigError, PlatformError
from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe_triton import library, tune
from hotshoe_triton.tune import Search, Tune, weight_bytes
from hotshoe_triton.tuning import LIBRARY, LinearConfig, configs

FACTS = device_facts("gfx942", units=304)
SPEC = LinearSpec(4096, 6144, "bfloat16")
INT8 = LinearSpec(4096, 6144, "bfloat16", weight=QuantSpec("int8", "channel", online=True))


class Linear(library.Linear):
    """An operation that is never built."""

    folder = Path("nowhere")


class Pool:
    """Compiles all but what spills."""

    def map(self, function: object, jobs: list[tuple]) -> list[bool]:
        assert {job[:3] for job in jobs} == {(Linear, SPEC, FACTS)} or not jobs
        return [job[-1].warps != 8 for job in jobs]


def search(monkeypatch, seconds, bucket: int = 16) -> tuple[float, LinearConfig]:
    """Search where configurations take what a function says."""
    monkeypatch.setattr(Search, "_time", lambda self, usable: [seconds(c) for c in usable])
    return Search(Linear, SPEC, FACTS, bucket, Pool()).best(trials=10)


def test_neighbors_of_the_best_are_tried(monkeypatch) -> None:
    goal = LinearConfig("skinny", 32, 128, 2, 2, 3)
    assert goal in list(configs(16, 6144, 4096, 2, FACTS))

    def seconds(config: LinearConfig) -> float:
        if config == LIBRARY:
            return 1.0
        off = sum(getattr(config, f) != getattr(goal, f) for f in ("block_n", "split_k", "stages"))
        return 0.5 + 0.1 * off

    best, config = search(monkeypatch, seconds)
    assert best == 0.5
    assert (config.block_n, config.split_k, config.stages) == (32, 2, 3)


def test_the_library_stays_unless_it_is_beaten_clearly(monkeypatch) -> None:
    found = search(monkeypatch, lambda config: 1.0 if config == LIBRARY else 0.997)
    assert found == (1.0, LIBRARY)


def test_what_does_not_compile_is_never_chosen(monkeypatch) -> None:
    def seconds(config: LinearConfig) -> float:
        assert config.warps != 8, "only what compiled is timed"
        return 2.0 if config == LIBRARY else 1.0 + config.block_n / 1e3

    assert search(monkeypatch, seconds)[1].warps != 8


def test_where_nothing_runs_nothing_is_chosen(monkeypatch) -> None:
    with pytest.raises(PlatformError, match="no configuration of bfloat16/6144x4096/16 runs on a"):
        search(monkeypatch, lambda config: float("inf"))


def test_every_kernel_is_sampled_alike() -> None:
    rare = [LinearConfig("streamed", 64, 128, stages=n) for n in range(6)]
    many = [LinearConfig("skinny", 64, 128, stages=n) for n in range(600)]
    found = list(tune._sample(many + rare + [LIBRARY], 12))
    assert [sum(c.kernel == k for c in found) for k in ("skinny", "streamed", "library")] == [
        4,
        4,
        1,
    ]
    assert found == list(tune._sample(many + rare + [LIBRARY], 12)) and len(set(found)) == 9


def test_bytes_that_must_be_read() -> None:
    assert weight_bytes(SPEC) == 2 * weight_bytes(INT8) == 2 * 4096 * 6144


@pytest.fixture
def run(monkeypatch, tmp_path: Path):
    """Return a function that runs the command; it returns what was searched for."""
    decisions = [SimpleNamespace(slot="linear", spec=spec) for spec in (SPEC, INT8)]
    decisions.append(SimpleNamespace(slot="rms_norm", spec=None))
    found = SimpleNamespace(facts=FACTS, decisions=decisions)

    def explain(config: EngineConfig) -> SimpleNamespace:
        assert config.platform == "rocm"
        return found

    monkeypatch.setattr(explaining, "explain", explain)
    searched: list[tuple[LinearSpec, int]] = []

    class Known(Search):
        def best(self, trials: int) -> tuple[float, LinearConfig]:
            searched.append((self._spec, self._bucket))
            return 1e-5, LinearConfig("skinny", 64, 128, 1, 4, 2)

    monkeypatch.setattr(tune, "Search", Known)

    def run(*arguments: str) -> list[tuple[LinearSpec, int]]:
        searched.clear()
        command, parser = Tune("rocm", Linear), Parser("tune rocm", "")
        command.add_arguments(parser)
        words = ["demo", "--output", str(tmp_path / "t.json"), "--jobs", "1", *arguments]
        assert command.run(parser.parse(words)) == 0
        return list(searched)

    return run


def test_what_is_tuned_is_kept(run, tmp_path: Path, capsys) -> None:
    assert run("--buckets", "1", "8") == [(SPEC, 1), (SPEC, 8), (INT8, 1), (INT8, 8)]
    entries = json.loads((tmp_path / "t.json").read_text())
    assert set(entries) == {
        f"{kind}/6144x4096/{n}" for kind in ("bfloat16", "int8") for n in (1, 8)
    }
    assert entries["int8/6144x4096/8"]["us"] == 10.0
    assert "4 entries in" in capsys.readouterr().out
    assert run("--buckets", "8", "16") == [(SPEC, 16), (INT8, 16)], "it goes on where it ended"
    assert run("--buckets", "8", "--again") == [(SPEC, 8), (INT8, 8)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--buckets", "8", "3"), "3 is not one of 1, 2, 4, 8, 16, 32, 64"),
        (("--buckets", "few"), "'few' is no whole number"),
        (("--jobs", "x"), "'x' is no whole number"),
        (("--buckets",), "expected at least one argument"),
        (("--jobs", "0"), "0 is less than 1"),
        (("--trials", "-1"), "-1 is less than 1"),
        (("--platform", "cpu"), "measures on platform rocm, not on cpu; leave --platform out"),
        (("--output", "/dev/null/t.json"), "/dev/null/t.json cannot be written"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(run, words, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(*words)


def test_what_is_tuned_already_is_kept_by_who_is_interrupted(run, monkeypatch, tmp_path) -> None:
    assert run("--buckets", "1") == [(SPEC, 1), (INT8, 1)]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tune.Search, "best", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run("--buckets", "8")
    assert len(json.loads((tmp_path / "t.json").read_text())) == 2


def test_a_process_that_dies_is_told_and_costs_nothing_measured(run, monkeypatch, tmp_path) -> None:
    assert run("--buckets", "1") == [(SPEC, 1), (INT8, 1)]

    def die(*_: object) -> None:
        raise BrokenProcessPool

    monkeypatch.setattr(tune.Search, "best", die)
    with pytest.raises(PlatformError, match=r"for bfloat16/6144x4096/8 was ended, .*lower --jobs"):
        run("--buckets", "8")
    assert len(json.loads((tmp_path / "t.json").read_text())) == 2
