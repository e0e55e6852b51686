"""Which prompt stands in front of a text: as one of three fields asks, or the model's default."""

import pytest

from hotshoe.errors import RequestError
from hotshoe.types.instructions import Instructions

NAMED = Instructions({"query": "q: ", "passage": "p: ", "corpus": "c: ", "sts": ""}, "corpus")


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, "c: "),
        ({"prompt": "Represent: "}, "Represent: "),
        ({"prompt": ""}, ""),
        ({"name": "query"}, "q: "),
        ({"name": "sts"}, ""),
        ({"input_type": "query"}, "q: "),
        ({"input_type": "search_query"}, "q: "),
        ({"input_type": "document"}, "p: "),
        ({"input_type": "search_document"}, "p: "),
        ({"input_type": "clustering"}, "c: "),
    ],
    ids=str,
)
def test_choices(asked, wanted) -> None:
    assert NAMED.chosen(**asked) == wanted


def test_a_model_without_prompts() -> None:
    none = Instructions()
    assert none.chosen() == none.chosen(input_type="query") == ""
    with pytest.raises(RequestError, match="'query' is no prompt of this model; it has: none"):
        none.chosen(name="query")


@pytest.mark.parametrize(
    ("asked", "message", "field"),
    [
        ({"name": "no"}, "it has: corpus, passage, query, sts", "prompt_name"),
        ({"input_type": "image"}, "'image' is unknown", "input_type"),
        ({"prompt": 5}, "prompt must be a text, not 5", "prompt"),
        ({"prompt": "", "name": "sts"}, "prompt and prompt_name exclude", "prompt_name"),
        ({"name": "sts", "input_type": "query"}, "exclude each other", "input_type"),
    ],
)
def test_refusals(asked, message, field) -> None:
    with pytest.raises(RequestError, match=message) as raised:
        NAMED.chosen(**asked)
    assert raised.value.field == field
