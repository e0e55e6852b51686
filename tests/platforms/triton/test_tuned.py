"""Tables of tuned configurations are written as they are read."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.platforms.triton.conftest import device_facts

from hotshoe.errors import ConfigError
from hotshoe.slots import LinearSpec, QuantSpec
from hotshoe_triton import tuned
from hotshoe_triton.tuning import LinearConfig

FACTS = device_facts("gfx942")
PLAIN = LinearSpec(4096, 6144, "bfloat16")
EIGHT = LinearSpec(4096, 6144, "bfloat16", weight=QuantSpec("int8", "channel", online=True))
ENTRY = {
    "kernel": "skinny",
    "block_n": 32,
    "block_k": 128,
    "split_k": 2,
    "warps": 4,
    "stages": 2,
    "us": 12.5,
}


def test_files_are_named_by_the_device() -> None:
    assert tuned.path_of(Path("x"), FACTS) == Path("x/a-gfx942.json")


def test_keys_name_type_shape_and_rows() -> None:
    assert tuned.key_of(PLAIN, 8) == "bfloat16/6144x4096/8"
    assert tuned.key_of(EIGHT, 64) == "int8/6144x4096/64"
    assert tuned.key_of(replace(PLAIN, dtype="float16"), 8) == tuned.key_of(PLAIN, 8)


def test_a_product_finds_its_own_entries(tmp_path: Path) -> None:
    keys = [tuned.key_of(PLAIN, 8), tuned.key_of(PLAIN, 64), tuned.key_of(EIGHT, 8)]
    other = LinearSpec(4096, 614, "bfloat16")
    keys.append(tuned.key_of(other, 8))
    tuned.write(tuned.path_of(tmp_path, FACTS), dict.fromkeys(keys, ENTRY))
    config = LinearConfig("skinny", 32, 128, 2, 4, 2)
    assert tuned.table_for(tmp_path, PLAIN, FACTS) == {
        (6144, 4096, 8): config,
        (6144, 4096, 64): config,
    }
    assert set(tuned.table_for(tmp_path, EIGHT, FACTS)) == {(6144, 4096, 8)}


def test_without_a_file_nothing_is_tuned(tmp_path: Path) -> None:
    assert tuned.read(tmp_path / "none.json") == {}
    assert tuned.table_for(tmp_path / "none", PLAIN, FACTS) == {}


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"a": 1}', '{"a": {"kernel": "gemv", "unknown": 1}}', '{"a": {}}']
)
def test_what_is_no_table_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"broken.json is no table of tuned configurations: "):
        tuned.read(path)


KEY = tuned.key_of(PLAIN, 8)


@pytest.mark.parametrize(
    ("key", "changes", "message"),
    [
        ("bfloat16/6144x4096/few", {}, "few' is not named like bfloat16/4096x14336/16"),
        (KEY, {"block_n": 0}, f"{KEY} has no usable block_n: 0"),
        (KEY, {"split_k": -1}, f"{KEY} has no usable split_k: -1"),
        (KEY, {"warps": "4"}, f"{KEY} has no usable warps: '4'"),
        (KEY, {"stages": 2.5}, f"{KEY} has no usable stages: 2.5"),
    ],
)
def test_an_entry_that_cannot_run_is_named(
    tmp_path: Path, key: str, changes: dict[str, object], message: str
) -> None:
    path = tmp_path / "broken.json"
    tuned.write(path, {key: ENTRY | changes})
    with pytest.raises(ConfigError, match=re.escape(message)):
        tuned.read(path)


def test_what_the_library_multiplies_has_no_tile(tmp_path: Path) -> None:
    found = {"kernel": "library", "us": 3.5}, {"kernel": "cublaslt", "tile": 20}
    entries = dict(zip((KEY, tuned.key_of(PLAIN, 64)), found, strict=True))
    tuned.write(tmp_path / "a.json", entries)
    assert tuned.read(tmp_path / "a.json") == entries


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path.name} is no table"):
        tuned.read(tmp_path)


def test_who_is_interrupted_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "a.json"
    tuned.write(path, {KEY: ENTRY})

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tuned.write(path, {KEY: ENTRY | {"us": 1.0}})
    assert tuned.read(path) == {KEY: ENTRY}


TABLES = st.dictionaries(
    st.from_regex(tuned.KEY, fullmatch=True),
    st.integers(min_value=1).map(lambda n: ENTRY | {"block_n": n}),
)


@given(TABLES)
def test_what_is_written_is_read(tmp_path_factory, entries) -> None:
    path = tmp_path_factory.mktemp("tuned") / "new" / "a.json"
    tuned.write(path, entries)
    assert tuned.read(path) == entries
    assert path.read_text().count("\n") == len(entries) + 2 or not entries
