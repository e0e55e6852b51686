"""Files of batches: every mistake is named before a model is loaded, and nothing is asked twice."""

import json
from pathlib import Path

import pytest

from hotshoe.errors import ConfigError
from hotshoe_server import batch_file
from hotshoe_server.batch_file import open_output, read_entries, read_line

URLS = ("/v1/completions", "/v1/embeddings")
GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def write(path: Path, *rows: object) -> Path:
    text = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(text) + "\n")
    return path


def test_requests_are_kept_by_their_place(tmp_path: Path) -> None:
    path = write(tmp_path / "in", GOOD, "", {**GOOD, "custom_id": "ü"}, {**GOOD, "custom_id": "c"})
    entries = read_entries(path, URLS)
    with path.open("rb") as file:
        assert [read_line(file, entry).custom_id for entry in reversed(entries)] == ["c", "ü", "a"]
    write(path, {**GOOD, "custom_id": "b"})
    with path.open("rb") as file, pytest.raises(ConfigError, match="has been changed"):
        read_line(file, entries[0])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{", "line 2: Input data was truncated"),
        ("[" * 100_000, "line 2: "),
        ([], "line 2: Expected `object`"),
        ({**GOOD, "custom_id": 3}, r"line 2: Expected `str`, got `int` - at `\$.custom_id`"),
        ({"custom_id": "b"}, "line 2: Object missing required field `method`"),
        ({**GOOD, "custom_id": "b", "method": "GET"}, "line 2: method must be POST"),
        ({**GOOD, "custom_id": "b", "url": "/sleep"}, "line 2: url must be one of /v1/comp"),
        ({**GOOD, "custom_id": "b", "body": {"stream": True}}, "line 2: a batch does not stream"),
        (GOOD, "line 2: custom_id 'a' is that of line 1"),
    ],
)
def test_mistakes_are_named_by_line(tmp_path: Path, row: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_entries(write(tmp_path / "in", GOOD, row), URLS)


def test_of_many_mistakes_the_first_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 10: .*; 5 further lines are malformed$"):
        read_entries(write(tmp_path / "in", *["{"] * 15), URLS)


def test_long_lines_cost_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_file, "MAX_LINE_BYTES", 200)
    path = write(tmp_path / "in", {**GOOD, "body": {"prompt": "x" * 1000}}, {**GOOD, "method": ""})
    with pytest.raises(ConfigError, match=r"line 1: it has 201 bytes.*; line 2: method"):
        read_entries(path, URLS)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_entries(tmp_path / "in", URLS)
    (tmp_path / "in").write_text("\n\n")
    with pytest.raises(ConfigError, match="holds no request"):
        read_entries(tmp_path / "in", URLS)
    with pytest.raises(ConfigError, match="cannot write"), open_output(tmp_path / "no" / "o", []):
        pass
    with pytest.raises(ConfigError, match="is a pipe or"), open_output(Path("/dev/zero"), []):
        pass
    with pytest.raises(ConfigError, match="is a pipe or a device; name a file"):
        read_entries(Path("/dev/zero"), URLS)


def test_a_line_that_was_cut_off_is_asked_again(tmp_path: Path) -> None:
    entries = read_entries(write(tmp_path / "in", GOOD, {**GOOD, "custom_id": "b"}), URLS)
    output = tmp_path / "out"
    output.write_text('{"custom_id": "a", "x": 1}\n{"custom_id": "b", "x"')
    with open_output(output, entries) as (file, answered):
        assert answered == {"a"}
        file.write(b'{"custom_id": "b"}\n')
        with pytest.raises(ConfigError, match="by another process"), open_output(output, entries):
            pass
    with open_output(output, entries) as (_, answered):
        assert answered == {"a", "b"}
    assert output.read_text() == '{"custom_id": "a", "x": 1}\n{"custom_id": "b"}\n'


@pytest.mark.parametrize(
    ("text", "words"), [('{"custom_id": "z"}\n', "which the input does not ask"), ("x\n", "line 1")]
)
def test_an_output_of_something_else_is_left_alone(tmp_path: Path, text: str, words: str) -> None:
    entries = read_entries(write(tmp_path / "in", GOOD), URLS)
    output = tmp_path / "out"
    output.write_text(text)
    with pytest.raises(ConfigError, match=words), open_output(output, entries):
        pass
    assert output.read_text() == text
