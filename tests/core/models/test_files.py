"""Every reader of model files reads regular files of bounded size alone, and waits for none."""

import os
from pathlib import Path

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.loader.files import checkpoint_files
from hotshoe.models import ModelConfig
from hotshoe.models.config import read_json
from hotshoe.models.files import MIB, open_regular, parse_json, read_file, read_text
from hotshoe.models.generation import sampling_defaults
from hotshoe.text import Tokenizer

READERS = {
    "config.json": ModelConfig.load,
    "generation_config.json": lambda path: sampling_defaults("auto", path),
    "model.safetensors.index.json": checkpoint_files,
    "tokenizer.json": Tokenizer.load,
    "tokenizer_config.json": Tokenizer.load,
    "special_tokens_map.json": Tokenizer.load,
    "chat_template.jinja": Tokenizer.load,
    "additional_chat_templates/tool_use.jinja": Tokenizer.load,
}


def test_a_regular_file_is_read_whole(tmp_path):
    (tmp_path / "f").write_bytes(b"x" * MIB)
    assert read_file(tmp_path / "f", MIB) == b"x" * MIB


def test_a_longer_file_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "f").open("wb") as file:
        file.truncate(2**40)  # nothing but a size: reading it would never end
    with pytest.raises(CheckpointError, match="more than 1 MiB"):
        read_file(tmp_path / "f", MIB)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="such a file is made up there")
def test_a_file_that_hides_its_size_is_bounded_too():
    assert read_file(Path("/proc/self/status"), MIB)
    with pytest.raises(CheckpointError, match="more than 0 MiB"):
        read_file(Path("/proc/self/status"), 10)


@pytest.mark.parametrize("name", ["n" * 300, "nul\0"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    with pytest.raises(CheckpointError, match="cannot be read: "):
        open_regular(tmp_path / name)


def test_text_is_utf8(tmp_path):
    (tmp_path / "f").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="cannot be read: 'utf-8' codec"):
        read_text(tmp_path / "f", MIB)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "huge"])
def test_every_reader_refuses_what_is_no_regular_file(tmp_path, small_model, kind, name):
    directory = tmp_path / "model"
    small_model(directory)
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 2**40)
    with pytest.raises(CheckpointError, match=r"is no regular file|cannot be read: it has more"):
        READERS[name](directory)


@pytest.mark.parametrize("digits", [21, 400, 5000])
def test_integers_that_nothing_can_have_are_refused(tmp_path, digits):
    """Python has them, and fails where they become floats."""
    assert parse_json(str(-(2**63))) == -(2**63)
    (tmp_path / "config.json").write_text(f'{{"rope_theta": {"9" * digits}}}')
    with pytest.raises(CheckpointError, match=rf"config\.json .*an integer has {digits} digits"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json", "merges.txt"])
def test_another_library_opens_no_pipe_either(tmp_path, name):
    pytest.importorskip("transformers")
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match="is no regular file"):
        Tokenizer.load(tmp_path)


@pytest.fixture
def small_model():
    """A function that writes a directory with a configuration and a small tokenizer."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    def write(directory):
        directory.mkdir()
        backend = Backend(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
        backend.save(str(directory / "tokenizer.json"))
        (directory / "config.json").write_text('{"architectures": ["A"]}')

    return write
