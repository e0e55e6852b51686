"""Where the demo model's text comes from: Debian packages, their licenses, the files taken.

Packages are fetched with `apt-get download` and unpacked without being installed.  This module
knows no text format (see `text.py`) and fetches nothing that is already in the cache.
`write_sources_table` records versions, digests and licenses next to the weights.
"""

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """One Debian package.

    Attributes:
        package: Debian package name.
        license: License of the text taken, as its `copyright` file states it.
        patterns: Globs below the unpacked package, e.g. `usr/share/doc/x/**/*.html`.
        form: How `text.py` reads the files: "html", "mallard", "pod", "python", "dict".
        max_characters: At most this much text is kept, so that no source dominates.
    """

    package: str
    license: str
    patterns: tuple[str, ...]
    form: str = "html"
    max_characters: int = 9_000_000


_DOC = "usr/share/doc"
_RUST_BOOKS = ("book", "reference", "rust-by-example", "nomicon", "cargo", "rustc", "edition-guide")

SOURCES: tuple[Source, ...] = (
    Source("python3.11-doc", "PSF-2.0", (f"{_DOC}/python3.11/html/**/*.html",)),
    Source("libpython3.11-stdlib", "PSF-2.0", ("usr/lib/python3.11/**/*.py",), "python", 6_000_000),
    Source("postgresql-doc-15", "PostgreSQL", (f"{_DOC}/postgresql-doc-15/html/*.html",)),
    Source(
        "sqlite3-doc", "public domain", (f"{_DOC}/sqlite3/**/*.html",), max_characters=5_000_000
    ),
    Source("apache2-doc", "Apache-2.0", (f"{_DOC}/apache2-doc/manual/en/**/*.html",)),
    Source("cmake-doc", "BSD-3-Clause", (f"{_DOC}/cmake-data/html/**/*.html",)),
    Source("python-django-doc", "BSD-3-Clause", (f"{_DOC}/python-django-doc/html/**/*.html",)),
    Source("python-flask-doc", "BSD-3-Clause", (f"{_DOC}/python-flask-doc/html/**/*.html",)),
    Source("python-sqlalchemy-doc", "MIT", (f"{_DOC}/python-sqlalchemy-doc/html/**/*.html",)),
    Source(
        "rust-doc",
        "MIT or Apache-2.0",
        tuple(f"{_DOC}/rust-doc/html/{book}/**/*.html" for book in _RUST_BOOKS),
    ),
    Source("nodejs-doc", "MIT", (f"{_DOC}/nodejs/api/*.html",), max_characters=5_000_000),
    Source("perl-doc", "GPL-1+ or Artistic", ("usr/share/perl/**/*.pod",), "pod", 7_000_000),
    Source("linux-doc-6.1", "GPL-2", (f"{_DOC}/linux-doc-6.1/html/**/*.html",)),
    Source(
        "python-scipy-doc",
        "BSD-3-Clause",
        (
            f"{_DOC}/python-scipy-doc/html/tutorial/**/*.html",
            f"{_DOC}/python-scipy-doc/html/reference/generated/*.html",
        ),
        max_characters=4_000_000,
    ),
    Source("erlang-doc", "Apache-2.0", (f"{_DOC}/erlang-doc/**/*.html",), max_characters=6_000_000),
    Source("git-doc", "GPL-2", (f"{_DOC}/git-doc/**/*.html",)),
    Source("bash-doc", "GPL-3+", (f"{_DOC}/bash/bash.html",)),
    Source("libreoffice-help-en-us", "MPL-2.0", ("usr/share/libreoffice/help/en-US/**/*.html",)),
    Source("gnome-user-docs", "CC-BY-SA-3.0", ("usr/share/help/C/**/*.page",), "mallard"),
    Source("dict-wn", "WordNet-3.0", ("usr/share/dictd/wn.dict.dz",), "dict", 5_000_000),
    Source(
        "debian-handbook", "GPL-2+ or CC-BY-SA-3.0", (f"{_DOC}/debian-handbook/html/en-US/*.html",)
    ),
    Source("debian-reference-en", "GPL-2+", ("usr/share/debian-reference/*.html",)),
    Source("debian-policy", "GPL-2+", (f"{_DOC}/debian-policy/**/*.html",)),
    Source("developers-reference", "GPL-2+", ("usr/share/developers-reference/*.html",)),
    Source("debian-faq", "copyleft notice of the Debian FAQ", (f"{_DOC}/debian/FAQ/*.html",)),
    Source("maint-guide", "GPL-2+", (f"{_DOC}/maint-guide/**/*.html",)),
    Source("debian-history", "GPL-2+", (f"{_DOC}/debian-history/docs/*.en.html",)),
    Source("installation-guide-amd64", "GPL-2", (f"{_DOC}/installation-guide-amd64/en/*.html",)),
    Source("harden-doc", "GPL-2", (f"{_DOC}/harden-doc/html/en-US/*.html",)),
    Source("aptitude-doc-en", "GPL-2+", (f"{_DOC}/aptitude/html/en/*.html",)),
)

# Licenses whose text may be quoted at some length under Apache-2.0's roof, with its notice.
_PERMISSIVE = frozenset(
    "PSF-2.0,PostgreSQL,public domain,Apache-2.0,BSD-3-Clause,MIT,MIT or Apache-2.0,WordNet-3.0".split(
        ","
    )
)
HOLDERS: dict[str, str] = {
    "python3.11-doc": "2001-2023 Python Software Foundation",
    "libpython3.11-stdlib": "2001-2023 Python Software Foundation",
    "postgresql-doc-15": "1996-2026 PostgreSQL Global Development Group; 1994 The Regents of the University of California",
    "sqlite3-doc": "none",
    "apache2-doc": "The Apache Software Foundation",
    "cmake-doc": "2000-2022 Kitware, Inc. and contributors",
    "python-django-doc": "Django Software Foundation and individual contributors",
    "python-flask-doc": "2010 Pallets",
    "python-sqlalchemy-doc": "2005-2023 SQLAlchemy authors and contributors",
    "rust-doc": "The Rust Project Developers",
    "nodejs-doc": "Node.js contributors; Joyent, Inc.",
    "perl-doc": "1987-2022 Larry Wall and others",
    "linux-doc-6.1": "1991-2022 Linus Torvalds and many others",
    "python-scipy-doc": "2001-2002 Enthought, Inc.; 2003-2023 SciPy Developers",
    "erlang-doc": "1997-2022 Ericsson AB",
    "git-doc": "2005-2022 Linus Torvalds and others",
    "bash-doc": "1987-2022 Free Software Foundation, Inc.",
    "libreoffice-help-en-us": "2000-2022 LibreOffice contributors and their affiliates; Oracle",
    "gnome-user-docs": "2010-2022 The GNOME documentation authors",
    "dict-wn": "2006 Princeton University",
    "debian-handbook": "2003-2022 Raphaël Hertzog, Roland Mas and others",
    "debian-reference-en": "2007-2022 Osamu Aoki and others",
    "debian-policy": "1996-2022 Ian Jackson, Christian Schwarz and others",
    "developers-reference": "1997-2023 Christian Schwarz and others",
    "debian-faq": "1996-2003 Software in the Public Interest",
    "maint-guide": "1998-2015 Josip Rodin, Osamu Aoki and others",
    "debian-history": "1999-2019 Bdale Garbee and the Debian Documentation Team",
    "installation-guide-amd64": "1996-2023 Bruce Perens, Sven Rudolph and others",
    "harden-doc": "2002-2017 Javier Fernández-Sanguino Peña and others",
    "aptitude-doc-en": "1999-2011 Daniel Burrows",
}


def quotable() -> frozenset[str]:
    """Return the packages of which extracts are shipped as held-out text."""
    return frozenset(source.package for source in SOURCES if source.license in _PERMISSIVE)


def fetch(cache: Path) -> dict[str, Path]:
    """Download and unpack every package that the cache lacks; return each package's root.

    Raises:
        subprocess.CalledProcessError: A package could not be fetched or unpacked.
    """
    debs, roots = cache / "debs", cache / "packages"
    debs.mkdir(parents=True, exist_ok=True)
    missing = [s.package for s in SOURCES if not list(debs.glob(f"{s.package}_*.deb"))]
    if missing:
        subprocess.run(["apt-get", "-q", "download", *missing], cwd=debs, check=True)
    for source in SOURCES:
        root = roots / source.package
        if not root.exists():
            deb = next(debs.glob(f"{source.package}_*.deb"))
            subprocess.run(["dpkg-deb", "-x", str(deb), str(root)], check=True)
    return {s.package: roots / s.package for s in SOURCES}


_TABLE_HEAD = """\
# Text that the demo model learned from

The weights derive from the documentation in these Debian 12 packages, and from conversations and
stories that `tools/demo_data` generates. Each package's text stays under its own license; Debian
ships the license texts under `/usr/share/common-licenses` and in each package's `copyright` file.
No text of the packages is distributed here except `heldout/text.txt`: short extracts, kept out of
training, of the packages marked in the column "extract", all under permissive licenses.

| package | version | license of the text | copyright | characters | extract | SHA-256 of the package |
|---|---|---|---|---:|---|---|"""


def write_sources_table(cache: Path, characters: dict[str, int], path: Path) -> None:
    """Write the table of sources (package, version, license, size, digest) as Markdown.

    Args:
        cache: The folder given to `fetch`.
        characters: Characters of text kept from each package.
        path: The Markdown file to write.
    """
    lines = [_TABLE_HEAD]
    for source in SOURCES:
        deb = next((cache / "debs").glob(f"{source.package}_*.deb"))
        version = deb.name.split("_")[1].replace("%3a", ":")
        digest = hashlib.sha256(deb.read_bytes()).hexdigest()
        row = (
            source.package,
            version,
            source.license,
            HOLDERS[source.package],
            f"{characters[source.package]:,}",
            "yes" if source.package in quotable() else "no",
            f"`{digest}`",
        )
        lines.append(f"| {' | '.join(row)} |")
    path.write_text("\n".join(lines) + "\n")
