"""Turn documentation files into clean plain text documents, deduplicated and split.

Reads what `sources.py` unpacked; knows HTML, GNOME's Mallard, Perl POD, Python source and the
dictd dictionary form.  Does no tokenising.  `collect` is called by `prepare.py`.
"""

import gzip
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from demo_data.sources import SOURCES, Source

_BLOCKS = frozenset(
    "p div section article main h1 h2 h3 h4 h5 h6 ul ol li dl dt dd table tr pre blockquote "
    "title page item steps note terms figure br hr".split()
)
_DROPPED = frozenset(
    "script style head header footer nav aside form button svg select info links desc iframe".split()
)
_DROPPED_CLASSES = frozenset(
    "sphinxsidebar related headerlink navheader navfooter toc toctree-wrapper nav-wrapper "
    "sidebar menu-bar nav-wide-wrapper qindex top apidocs langselect bottomlang path "
    "docnav version clearer source-link linkback titlepage-legal".split()
)
_DROPPED_IDS = frozenset("page-header footer quickview toc sidebar column2 Header menu".split())
_VOID = frozenset("br hr img input meta link col source wbr area base embed".split())


class _Reader(HTMLParser):
    """Collect visible text; `pre` keeps its layout, other text is reflowed one block a line."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._dropping: list[str] = []
        self._pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS and not self._dropping:
            self.parts.append("\n")
        if tag in _VOID:
            return
        found = {key: value or "" for key, value in attrs}
        unwanted = (
            tag in _DROPPED
            or not _DROPPED_CLASSES.isdisjoint(found.get("class", "").split())
            or found.get("id") in _DROPPED_IDS
            or found.get("role") == "navigation"
        )
        if unwanted or self._dropping:
            self._dropping.append(tag)
            return
        if tag in ("h1", "h2", "h3", "p", "pre", "table", "ul", "ol", "dl"):
            self.parts.append("\n")
        if tag == "li":
            self.parts.append("- ")
        self._pre += tag in ("pre", "code_block", "screen")

    def handle_endtag(self, tag: str) -> None:
        if self._dropping:
            if tag in self._dropping:
                while self._dropping.pop() != tag:
                    pass
            return
        self._pre = max(0, self._pre - (tag in ("pre", "code_block", "screen")))
        if tag in _BLOCKS:
            self.parts.append("\n")
        elif tag in ("td", "th"):
            self.parts.append("  ")

    def handle_data(self, data: str) -> None:
        if not self._dropping:
            self.parts.append(data if self._pre else re.sub(r"\s+", " ", data))


def _tidy(text: str) -> str:
    text = text.replace("\u00a0", " ").replace("\u00b6", "").replace("\r", "")
    text = text.replace("\u2019", "'").replace("\u201c", '"').replace("\u201d", '"')
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"\n- *\n+", "\n- ", text)
    text = re.sub(r"(?m)^ (?=\S)", "", text)
    text = re.sub(r"[\w.+-]+@[\w-]+\.[\w.-]*\w", "user@example.org", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _html(data: str) -> Iterator[str]:
    reader = _Reader()
    reader.feed(data)
    reader.close()
    yield "".join(reader.parts)


def _pod(data: str) -> Iterator[str]:
    data = re.sub(r"(?m)^=(head\d|item) +", "", data)
    data = re.sub(r"(?m)^=\w+.*\n", "", data)
    for _ in range(3):
        data = re.sub(r"[BCIFLSXZ]<+ ?([^<>]*?) ?>+", r"\1", data)
    yield data.replace("E<gt>", ">").replace("E<lt>", "<")


def _python(data: str) -> Iterator[str]:
    """Yield a module's head and each top-level definition, so that code also starts documents."""
    yield from re.split(r"\n(?=(?:async )?def |class |@)", data)


def _dictionary(data: str) -> Iterator[str]:
    """Yield dictionary entries, forty to a document, without their synonym lists."""
    entries = re.split(r"\n(?=\S)", data)
    kept = []
    for entry in entries:
        flat = re.sub(r"\s+", " ", re.sub(r"\[[^]]*\]", "", entry)).strip()
        flat = re.sub(r" (n|v|adj|adv) 1: ", r" (\1): ", flat, count=1)
        if 40 < len(flat) < 500 and flat[0].islower() and not _COARSE.search(flat):
            kept.append(flat)
    for start in range(0, len(kept), 40):
        yield "\n".join(kept[start : start + 40])


_FORMS: dict[str, Callable[[str], Iterator[str]]] = {
    "html": _html,
    "mallard": _html,
    "pod": _pod,
    "python": _python,
    "dict": _dictionary,
}
_SHORTEST = dict.fromkeys(_FORMS, 400) | {"python": 120}
_COARSE = re.compile(
    r"slang|offensive|slur|vulgar|obscene|disparag|sexual|genital|ethnic|intercourse"
)
_SKIPPED = re.compile(
    r"(^|/)(test|tests|idlelib|lib2to3|encodings|pydoc_data|_modules|_sources|releases|genindex"
    r"|changelog|releaselog|whatsnew|translations)[^/]*(/|$)|genindex|py-modindex|print\.html|search\.html"
    r"|/release-\d|perltoc|/developers-reference\.html"
)


def _read(path: Path) -> str:
    raw = path.read_bytes()
    if path.suffix in (".gz", ".dz"):
        raw = gzip.decompress(raw)
    return raw.decode("utf-8", errors="replace")


@dataclass(frozen=True)
class Document:
    """One document: its package, its text, and whether it is kept out of training."""

    package: str
    text: str
    held_out: bool


def _paragraphs_once(text: str, seen: set[bytes]) -> str:
    """Drop long paragraphs that were met before (licence headers, repeated tables)."""
    kept = []
    for paragraph in text.split("\n\n"):
        if len(paragraph) > 80:
            digest = hashlib.blake2b(paragraph.encode(), digest_size=12).digest()
            if digest in seen:
                continue
            seen.add(digest)
        kept.append(paragraph)
    return "\n\n".join(kept)


def read_source(source: Source, root: Path) -> list[Document]:
    """Read one package: extract, tidy, drop repetition and markup debris, cap, split 1 in 100."""
    files = sorted({path for pattern in source.patterns for path in root.glob(pattern)})
    files = [f for f in files if f.is_file() and not _SKIPPED.search(str(f.relative_to(root)))]
    files.sort(key=lambda f: hashlib.blake2b(str(f.relative_to(root)).encode()).digest())
    seen: set[bytes] = set()
    documents: list[Document] = []
    total = 0
    for path in files:
        for extracted in _FORMS[source.form](_read(path)):
            text = _paragraphs_once(_tidy(extracted), seen)
            letters = sum(c.isalpha() and c.isascii() for c in text[:20_000])
            if len(text) < _SHORTEST[source.form] or letters < 0.55 * min(len(text), 20_000):
                continue
            if total >= source.max_characters:
                return documents
            held_out = hashlib.blake2b(text.encode(), digest_size=4).digest()[0] < 3
            documents.append(Document(source.package, text, held_out))
            total += len(text)
    return documents


def collect(roots: dict[str, Path]) -> list[Document]:
    """Read every source in table order."""
    return [doc for source in SOURCES for doc in read_source(source, roots[source.package])]
