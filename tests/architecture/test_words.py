"""The vocabulary of pages and docstrings: words that the house does not use, and what it says.

`codespell` knows American spelling and slips. This knows idle words, compounds that `codespell`
does not know, and other projects' names for what has a name in the glossary.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

#: A pattern of words, and what to say instead; "" for nothing.
WORDS = {
    # Idle words.
    "actually|basically|easily|essentially|obviously|of course|please|really|simply": "",
    "it should be noted|note that|the fact that": "",
    "a variety of|numerous|various": "several, or the number",
    "aforementioned|the above-mentioned": "this",
    "and/or": "and, or or",
    "approximately": "about",
    "at the moment|at this point in time|as of now": "now",
    "by means of": "by",
    "commence[sd]?|commencing": "begin",
    "due to|in view of": "because of",
    r"e\.g\.|for instance": "such as",
    "facilitat(e[sd]?|ing)": "help",
    "functionality|functionalities": "what it does",
    r"i\.e\.": "that is",
    "in case of": "where, on",
    "in order to": "to",
    "in terms of|with regard to|with respect to|regarding": "of, by",
    "is able to|are able to|has the ability to|have the ability to": "can",
    "leverag(e[sd]?|ing)|utili[sz](e[sd]?|ing|ation)|makes? use of": "use",
    "prior to": "before",
    "subsequent(ly)?": "next, later",
    # Praise.
    "blazing(ly)?|cutting-edge|elegant(ly)?|performant|powerful|robust(ly|ness)?|seamless(ly)?": "",
    "best-in-class|next-generation|sophisticated|state-of-the-art|world-class": "",
    # American spelling, where the builtin dictionaries have gaps.
    r"\w*(author|custom|final|general|initial|material|maxim|minim|normal|optim|organ|parallel|quant"
    r"|real|recogn|serial|special|summar|synchron|token|vector)is(e[sdr]?|ers|ing|ations?)": "-iz-",
    "amongst|whilst": "among, while",
    "burnt|learnt|spelt|spoilt": "-ed",
    "licence[sd]?": "license",
    "towards": "toward",
    # What has a name in the glossary.
    "batch slots?|KV slots?": "row, block",
    "doorm[ae]n": "admission",
    "evict(s|ed|ing|ions?)?": "preemption; take blocks",
    "guided decoding": "grammar, structured output",
    "page tables?": "block table",
    "radix caches?": "prefix cache",
    "speculative tokens?": "draft",
}
RULES = {re.compile(rf"\b(?:{words})(?!\w)", re.IGNORECASE): say for words, say in WORDS.items()}
#: Pages that name other projects' words, and measurements, which are kept as they were written.
FOREIGN = {"docs/glossary.md", "benchmarks/notes/log.md", "benchmarks/notes/measurements.md"}
CODE = re.compile(r"```.*?```|``.*?``|`[^`\n]*`|https?://\S+|<!--.*?-->", re.DOTALL)


def prose(root: Path) -> Iterator[tuple[str, str]]:
    """Yield every page of this repository with its place."""
    folders = ("benchmarks", "core", "csrc", "docs", "examples", "platforms", "plugins", "tools")
    paths = [*root.glob("*.md"), *(p for f in folders for p in (root / f).rglob("*.md"))]
    for path in sorted(paths):
        place = path.relative_to(root)
        if str(place) not in FOREIGN and "build" not in place.parts:
            yield str(place), path.read_text(encoding="utf-8")


def docstrings(sources) -> Iterator[tuple[str, str]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)) is not None:
                yield f"{source.path}:{getattr(node, 'lineno', 1)}", text


def faults(place: str, text: str) -> list[str]:
    """Name the words of a text that are not used, each with what to say."""
    plain = CODE.sub(" ", text)
    return [
        f"{place}: {found[0]!r}, say {say or 'nothing'!r}"
        for rule, say in RULES.items()
        for found in rule.finditer(plain)
    ]


def test_pages_and_docstrings_keep_to_the_vocabulary(root: Path, sources) -> None:
    texts = [*prose(root), *docstrings(sources)]
    assert len(texts) > 1000
    assert [fault for place, text in texts for fault in faults(place, text)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It is simply\nfast", "simply"),
        ("Detokenisation of text", "Detokenisation"),
        ("Shapes, e.g. of a page", "e.g."),
        ("Leveraging this", "Leveraging"),
    ],
)
def test_the_linter_finds(text: str, found: str) -> None:
    assert [found in fault for fault in faults("a page", text)] == [True]


def test_the_linter_leaves_code_alone() -> None:
    assert faults("a page", "Set `simply` in ```\nprior to\n``` and simplify") == []
