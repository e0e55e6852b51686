"""What files say of a tokenizer; how the tokenizer uses it is tested with `Tokenizer`."""

import json
from pathlib import Path

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.text.tokenizer_files import chat_templates, json_object, named_tokens, special_tokens


def test_tokens_are_text_or_objects(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": None}
    assert named_tokens(tmp_path, config) == {"bos_token": "<s>", "eos_token": "</s>"}
    with pytest.raises(CheckpointError, match="pad_token is not valid Unicode"):
        named_tokens(tmp_path, {"pad_token": "\ud800"})


def test_an_older_checkpoint_names_tokens_in_a_file(tmp_path: Path) -> None:
    assert json_object(tmp_path / "special_tokens_map.json") == {}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<b>"}))
    assert special_tokens(tmp_path, {}) == {"bos_token": "<b>"}
    assert special_tokens(tmp_path, {"added_tokens_decoder": {}}) == {}


def test_templates_of_files_win(tmp_path: Path) -> None:
    config = {"chat_template": [{"name": "default", "template": "listed"}]}
    assert chat_templates(tmp_path, config) == {"default": "listed"}
    (tmp_path / "chat_template.jinja").write_text("of a file")
    assert chat_templates(tmp_path, config) == {"default": "of a file"}
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointError, match="chat_template must be text"):
        chat_templates(tmp_path, {"chat_template": [{"name": "default"}]})
