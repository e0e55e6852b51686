"""The soak's own arithmetic, and a short soak of a real server."""

import json
import mmap
import os
from pathlib import Path

import pytest
import soak

MIB = 2**20


def test_slope_is_that_of_the_second_half() -> None:
    warm_up = [(float(s), 100 * s * MIB) for s in range(60)]
    steady = [(60.0 + s, 6000 * MIB + (s % 2) * MIB) for s in range(60)]
    assert abs(soak.slope_mib_per_minute([*warm_up, *steady])) < 0.1
    leaking = [(60.0 + s, 6000 * MIB + s * MIB // 6) for s in range(60)]
    assert soak.slope_mib_per_minute([*warm_up, *leaking]) == pytest.approx(10, rel=0.05)


def test_memory_of_a_process() -> None:
    before = soak.held_bytes(os.getpid())[os.getpid()]
    with mmap.mmap(-1, 64 * MIB) as held:  # never memory that was freed before
        held.write(b"x" * len(held))
        grown = soak.held_bytes(os.getpid())[os.getpid()] - before
        assert len(held) * 0.8 < grown < len(held) * 3


def test_open_files() -> None:
    before = soak.open_files([os.getpid()])
    with Path(os.devnull).open(), Path(os.devnull).open():
        assert soak.open_files([os.getpid(), 2**22 + 1]) == before + 2
    assert soak.more_files([5, *[100] * 60, *[101] * 39]) == 1
    assert soak.more_files(list(range(100))) == 40
    assert soak.more_files([3]) == 0


def test_latency_of_quarters() -> None:
    found = soak.quarters_ms([(0.0, 0.1), (2.4, 0.3), (5.0, 1.0), (10.0, 2.0), (99.0, 4.0)], 10)
    assert found == [200.0, None, 1000.0, 3000.0]


def test_hours_are_minutes() -> None:
    assert soak.parse([]).minutes == 30
    assert soak.parse(["--hours", "24"]).minutes == 1440


@pytest.mark.slow
def test_a_short_soak(tmp_path: Path, monkeypatch, capsys) -> None:
    words = ["soak", "--minutes", "0.3", "--max-slope", "1e9", "--log", str(tmp_path / "log")]
    words += ["--sleep-every", "5"]
    monkeypatch.setattr("sys.argv", words)
    assert soak.main() == 0
    found = json.loads(capsys.readouterr().out)
    ends = found["ends"]
    assert len(found["processes"]) >= 2
    assert len(found["latency_of_quarters_ms"]) == 4
    assert {end.partition(":")[0] for end in ends} == {
        *(kind.__name__ for kind in soak.KINDS),
        "sleep",
    }
    assert ends["sleep: slept"] >= 2
