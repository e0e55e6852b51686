"""Documentation files become clean text; repetition and navigation are gone."""

from pathlib import Path

from demo_data import text
from demo_data.sources import HOLDERS, SOURCES, Source, quotable

PAGE = """<html><head><title>T</title></head><body><nav>Home | Next</nav>
<div class="sphinxsidebar">Side</div><h1>Files</h1><p>A file has
a   <b>name</b>.</p><pre>x = 1
  y = 2</pre><ul><li>one</li><li>two</li></ul><script>evil()</script></body></html>"""


def extracted(data: str, form: str) -> str:
    return text._tidy("".join(text._FORMS[form](data)))


def test_html_keeps_text_and_layout_of_code() -> None:
    assert (
        extracted(PAGE, "html") == "Files\n\nA file has a name.\n\nx = 1\n  y = 2\n\n- one\n\n- two"
    )


def test_pod_loses_its_commands() -> None:
    assert extracted("=head1 NAME\n\nB<perl> - I<the> C<language>\n\n=cut\n", "pod") == (
        "NAME\n\nperl - the language"
    )


def test_python_starts_a_document_at_each_definition() -> None:
    parts = list(
        text._FORMS["python"]('"""Doc."""\nimport x\n\ndef f():\n    pass\n\nclass C: ...')
    )
    assert [part.split()[0] for part in parts] == ['"""Doc."""', "def", "class"]


def test_addresses_are_hidden() -> None:
    assert extracted("<p>Write to jane.doe+x@mail.debian.org now</p>", "html") == (
        "Write to user@example.org now"
    )


def test_a_source_is_deduplicated_split_and_capped(tmp_path: Path) -> None:
    licence = (
        "All of this is free to use under the terms that are told in the file named COPYING. " * 3
    )
    for i in range(300):
        words = " ".join(f"sentence {i} number {j} tells something of its own." for j in range(20))
        (tmp_path / f"{i}.html").write_text(f"<p>{words}</p><p>{licence}</p>")
    source = Source("p", "MIT", ("*.html",), max_characters=150_000)
    documents = text.read_source(source, tmp_path)
    assert sum(licence.strip() in document.text for document in documents) == 1
    total = sum(len(document.text) for document in documents)
    assert 150_000 <= total < 153_000
    assert {document.package for document in documents} == {"p"}
    assert documents == text.read_source(source, tmp_path)


def test_every_source_names_its_holder_and_only_permissive_ones_are_quoted() -> None:
    assert set(HOLDERS) == {source.package for source in SOURCES}
    assert all(source.form in text._FORMS for source in SOURCES)
    quoted = [source.license for source in SOURCES if source.package in quotable()]
    assert len(quoted) > 8
    assert not [terms for terms in quoted if "GPL" in terms or "SA" in terms]
