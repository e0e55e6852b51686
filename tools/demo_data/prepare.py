"""The CPU part of training: sources to tokenizer, token stream, word list, evaluation cases.

Writes everything that the trainer needs into one folder, small enough to carry to a machine
without a network.  Called by `tools/train_demo.py`.
"""

import json
import lzma
import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from demo_data import heldout, sources
from demo_data.chat import segments
from demo_data.mixture import conversation
from demo_data.packing import Tokens
from demo_data.tasks.talk import story_text
from demo_data.text import Document, collect
from demo_data.tokenizer import END_OF_TEXT, save, token_ids, train
from demo_data.words import World

SEED = 1
_HELD_OUT_CHARACTERS = 120_000
_VOCABULARY_SIZE = 20_000
_STORIES = 12_000


@dataclass(frozen=True)
class Prepared:
    """The folder that `prepare` writes and `load` reads."""

    folder: Path

    @property
    def tokenizer(self) -> Tokenizer:
        """The trained tokenizer."""
        return Tokenizer.from_file(str(self.folder / "tokenizer" / "tokenizer.json"))

    @property
    def vocabulary(self) -> list[str]:
        """Words of the documentation, most frequent first."""
        return (self.folder / "vocabulary.txt").read_text().split()

    @property
    def text_stream(self) -> Tokens:
        """All training text as one stream of token ids."""
        raw = lzma.decompress((self.folder / "text.u16.xz").read_bytes())
        return np.frombuffer(raw, dtype=np.uint16)


def _words(documents: list[Document]) -> list[str]:
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(re.findall(r"\b[A-Za-z][a-z]{1,12}\b", document.text))
    return [word for word, _ in counts.most_common(_VOCABULARY_SIZE)]


def _sample_conversations(vocabulary: list[str], count: int) -> list[str]:

    rng = random.Random(SEED)
    made = (segments(conversation(World(rng, vocabulary))) for _ in range(count))
    return ["".join(text for text, _ in pieces) for pieces in made]


def _stories(vocabulary: list[str]) -> list[Document]:
    """Write stories as plain documents, so that a bare `Once upon a time` goes on as one."""
    rng = random.Random(SEED)
    made = {story_text(World(rng, vocabulary)) for _ in range(_STORIES)}
    return [Document("stories", text, held_out=False) for text in sorted(made)]


def _encode(tokenizer: Tokenizer, documents: list[Document]) -> Tokens:
    end = tokenizer.token_to_id(END_OF_TEXT)
    order = np.random.default_rng(SEED).permutation(len(documents))
    stream: list[int] = []
    for start in range(0, len(order), 64):
        batch = [documents[i].text for i in order[start : start + 64]]
        for ids in token_ids(tokenizer, batch):
            stream += [*ids, end]
    return np.array(stream, dtype=np.uint16)


def _held_out_text(documents: list[Document]) -> str:
    """Take an equal share of held-out text from every quotable package, up to the total."""
    by_package: dict[str, str] = {}
    for document in documents:
        so_far = by_package.get(document.package, "")
        by_package[document.package] = (so_far + "\n\n" + document.text).strip()
    share = _HELD_OUT_CHARACTERS // len(by_package)
    parts = [text[:share].rsplit("\n", 1)[0] for text in by_package.values()]
    return "\n\n".join(parts) + "\n"


def prepare(cache: Path, folder: Path) -> Prepared:
    """Fetch the sources and write `folder`; a pure function of the packages and the seeds.

    Args:
        cache: Where packages are kept.
        folder: Where the results go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    documents = collect(sources.fetch(cache))
    training = [document for document in documents if not document.held_out]
    characters: Counter[str] = Counter()
    for document in training:
        characters[document.package] += len(document.text)
    sources.write_sources_table(cache, dict(characters), folder / "SOURCES.md")

    vocabulary = _words(training)
    (folder / "vocabulary.txt").write_text("\n".join(vocabulary) + "\n")
    order = np.random.default_rng(SEED).permutation(len(training))
    texts = [training[i].text for i in order[: len(order) // 2]]
    tokenizer = train(texts + _sample_conversations(vocabulary, 20_000))
    save(tokenizer, folder / "tokenizer")

    stream = _encode(tokenizer, training + _stories(vocabulary))
    (folder / "text.u16.xz").write_bytes(lzma.compress(stream.tobytes(), preset=4))
    quotable = sources.quotable()
    held_out = _held_out_text([d for d in documents if d.held_out and d.package in quotable])
    (folder / "heldout.txt").write_text(held_out)
    cases = heldout.build_cases(vocabulary)
    lines = [json.dumps(case, ensure_ascii=False) for case in cases]
    (folder / "cases.jsonl").write_text("\n".join(lines) + "\n")
    print(
        f"{len(documents)} documents, {sum(characters.values()):,} characters, "
        f"{len(stream):,} tokens ({sum(characters.values()) / len(stream):.2f} characters a token), "
        f"{len(cases)} cases",
        flush=True,
    )
    return Prepared(folder)
