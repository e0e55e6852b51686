"""A query and a document as one prompt."""

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from hotshoe.errors import RequestError
from hotshoe.text import Tokenizer
from hotshoe.text.pairs import pair_text

PAIR = ("who </s>", "we are")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    words = {w: i for i, w in enumerate("[UNK] <s> </s> who we are".split())}
    backend = Backend(models.WordLevel(words, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<s>", "</s>"])
    ends = [("<s>", 1), ("</s>", 2)]
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A </s> $B", special_tokens=ends
    )
    return Tokenizer(backend, {}, {})


@pytest.mark.parametrize(
    ("separated", "marked", "ids"),
    [
        (True, True, [1, 3, 0, 0, 2, 4, 5]),
        (True, False, [1, 3, 2, 2, 4, 5]),
        (False, False, [1, 3, 2, 4, 5]),
        (False, True, [1, 3, 0, 0, 5]),
    ],
)
def test_pairs_are_put_together(tokenizer, separated, marked, ids) -> None:
    text, adds = pair_text(tokenizer, PAIR, separated, False, marked)
    assert tokenizer.encode(text, adds, marked) == ids


@pytest.mark.parametrize(
    ("marked", "ids"), [(False, [1, 3, 2, 2, 4, 5]), (True, [1, 3, 0, 0, 2, 4, 5])]
)
def test_a_template_puts_them_together(tokenizer, marked, ids) -> None:
    source = "<s>{% for m in messages if m.role == 'query' %}{{ m.content }}{% endfor %} </s>"
    source += "{% for m in messages if m.role == 'document' %} {{ m.content }}{% endfor %}"
    tokenizer.chat_templates = {"default": source}
    text, adds = pair_text(tokenizer, PAIR, True, True, marked)
    assert tokenizer.encode(text, adds, marked) == ids
    tokenizer.chat_templates = {}
    with pytest.raises(RequestError, match="no chat template"):
        pair_text(tokenizer, PAIR, True, True, marked)
