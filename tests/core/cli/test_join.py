"""`hotshoe join`: what it needs, and what it passes on."""

from argparse import ArgumentParser
from pathlib import Path

import pytest

from hotshoe.cli import join
from hotshoe.errors import ConfigError


def parsed(*words: str):
    parser = ArgumentParser()
    join.Join().add_arguments(parser)
    return parser.parse_args(words)


def test_it_joins_the_engine_at_the_address(tmp_path: Path, monkeypatch) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef")
    secret.chmod(0o600)
    seen: list[object] = []
    monkeypatch.setattr(join, "join_engine", lambda *arguments: seen.extend(arguments))
    words = ("--node-rank", "1", "--master-addr", "10.0.0.1", "--cluster-secret-file", str(secret))
    assert join.Join().run(parsed(*words)) == 0
    assert seen == ["10.0.0.1", 29501, b"0123456789abcdef", 1, 3600.0]


def test_a_secret_that_is_not_there_is_refused(tmp_path: Path) -> None:
    words = (
        "--node-rank",
        "1",
        "--master-addr",
        "x",
        "--cluster-secret-file",
        str(tmp_path / "no"),
    )
    with pytest.raises(ConfigError, match="cluster_secret_file"):
        join.Join().run(parsed(*words))


def test_the_host_needs_a_number(capsys) -> None:
    with pytest.raises(SystemExit):
        parsed("--master-addr", "x", "--cluster-secret-file", "y")
    assert "--node-rank" in capsys.readouterr().err
