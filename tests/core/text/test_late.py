"""How models of late interaction mark texts, as both forms of files say."""

import json
from types import SimpleNamespace

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.text.late import read_late
from hotshoe.types.late import LateInteraction

TOKENS = {"[CLS]": 1, "[MASK]": 2, "[unused0]": 3, "[unused1]": 4, "[Q] ": 5, "[D] ": 6, ",": 7}
TOKENIZER = SimpleNamespace(token_ids=TOKENS, special_tokens={"mask_token": "[MASK]"})
COLBERT = {
    "query_token_id": "[unused0]",
    "doc_token_id": "[unused1]",
    "query_maxlen": 24,
    "mask_punctuation": True,
    "attend_to_mask_tokens": False,
}
PYLATE = {
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 48,
    "attend_to_expansion_tokens": True,
    "skiplist_words": [",", "no token"],
}


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("artifact.metadata", COLBERT, LateInteraction(3, 4, 24, 2, False, (7,))),
        ("config_sentence_transformers.json", PYLATE, LateInteraction(5, 6, 48, 2, True, (7,))),
        (
            "config_sentence_transformers.json",
            PYLATE | {"do_query_expansion": False},
            LateInteraction(5, 6, 48, None, True, (7,)),
        ),
        ("config_sentence_transformers.json", {}, LateInteraction(mask=2, mask_seen=False)),
        ("other.json", COLBERT, LateInteraction()),
    ],
)
def test_files(tmp_path, name, values, wanted) -> None:
    (tmp_path / name).write_text(json.dumps(values))
    assert read_late(tmp_path, TOKENIZER) == wanted
    assert read_late(tmp_path, None) == LateInteraction()


def test_a_marker_is_a_token(tmp_path) -> None:
    (tmp_path / "artifact.metadata").write_text(json.dumps(COLBERT | {"query_token_id": "[no]"}))
    with pytest.raises(CheckpointError, match=r"query_token_id is '\[no\]', which is no token"):
        read_late(tmp_path, TOKENIZER)
