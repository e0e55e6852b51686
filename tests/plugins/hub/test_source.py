"""Fetching from a hub, with the real client library against one on this machine."""

from pathlib import Path

import huggingface_hub.constants
import pytest
from tests.plugins.hub.conftest import FIRST, SECOND, Hub

from hotshoe.errors import CheckpointError
from hotshoe.models.source import FoundModel, WantedModel
from hotshoe_hub import source

DESCRIPTION = {
    "config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "merges.txt",
    "model.safetensors.index.json",
}


pytestmark = pytest.mark.usefixtures("at_hub")


def fetch(revision: str | None = None, weights: bool = False) -> FoundModel:
    found = source.fetch(WantedModel("org/tiny", revision, weights=weights))
    assert found is not None
    return found


def names(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*") if not p.is_dir()}


@pytest.mark.parametrize(
    "name",
    ["demo", "/srv/org/tiny", "./org/tiny", "~/tiny", "a/b/c", "https://x.org/a", "org/", ""],
)
def test_other_names_are_nobodys(name: str, hub: Hub) -> None:
    assert source.fetch(WantedModel(name)) is None
    assert hub.asked == []


def test_weights_come_when_they_are_wanted_and_code_never(hub: Hub) -> None:
    described = fetch()
    assert described.revision == FIRST
    assert names(described.path) == DESCRIPTION
    assert fetch(FIRST, weights=True) == described
    assert names(described.path) == DESCRIPTION | {"model-1.safetensors"}
    assert (described.path / "model-1.safetensors").read_text() == "{}model-1.safetensors"
    assert hub.files_asked() == names(described.path)


def test_a_publishers_own_form_comes_where_there_is_no_other(hub: Hub) -> None:
    (hub.directory / "config.json").unlink()
    (hub.directory / "params.json").write_text("{}")
    described = fetch()
    assert "consolidated.safetensors" not in names(described.path)
    assert fetch(FIRST, weights=True) == described
    assert "consolidated.safetensors" in names(described.path)
    assert "original/a.json" not in names(described.path)


@pytest.mark.parametrize("variant", ["Q4_0", "q4_0"])
def test_a_variant_is_a_file_or_its_parts(hub: Hub, variant: str) -> None:
    wanted = {"tiny-Q4_0.gguf", "big-Q4_0-00001-of-00002.gguf", "big-Q4_0-00002-of-00002.gguf"}
    wanted |= {"tiny.Q4_0.gguf", "Q4_0.gguf", "Q4_0/m-Q4_0-00001-of-00001.gguf", "a/q4_0.gguf"}
    others = {"tiny-Q8_0.gguf", "tiny-Q4_0_L.gguf", "tiny-IQ4_0.gguf", "a/b/tiny-Q4_0.gguf"}
    for name in wanted | others | {"mmproj-Q4_0.gguf", "tiny-mmproj-Q4_0.gguf", "a/c-Q8_0.gguf"}:
        (hub.directory / name).parent.mkdir(parents=True, exist_ok=True)
        (hub.directory / name).write_text("GGUF")
    found = source.fetch(WantedModel("org/tiny", variant=variant))
    assert found is not None and names(found.path) == wanted
    assert found == source.fetch(WantedModel("org/tiny", FIRST, weights=True, variant=variant))


def test_a_commit_that_is_here_needs_no_network(hub: Hub) -> None:
    first = fetch(weights=True)
    hub.asked.clear()
    assert fetch(first.revision, weights=True) == first
    assert hub.asked == []


def test_revisions_are_kept_apart(hub: Hub) -> None:
    newest, named = fetch(), fetch("v2")
    assert (newest.revision, named.revision) == (FIRST, SECOND)
    assert newest.path != named.path


def test_what_was_fetched_serves_while_the_hub_is_away(hub: Hub) -> None:
    first = fetch(weights=True)
    hub.refused = (503, "")
    assert fetch(weights=True) == first


def test_a_folder_can_be_given(tmp_path: Path) -> None:
    found = source.fetch(WantedModel("org/tiny", folder=tmp_path / "mine"))
    assert found is not None
    assert found.path.is_relative_to(tmp_path / "mine")


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        ((401, "RepoNotFound"), "no such model, or it is private"),
        ((404, "RepoNotFound"), "no such model, or it is private"),
        ((403, "GatedRepo"), "accepted their terms"),
        ((503, ""), "cannot be reached"),
    ],
)
def test_refusals_say_what_to_do(hub: Hub, refused: tuple[int, str], message: str) -> None:
    hub.refused = refused
    with pytest.raises(CheckpointError, match=rf"^org/tiny cannot be fetched: .*{message}"):
        fetch()


def test_an_unknown_revision_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"^org/tiny \(revision v9\) .* no such revision"):
        fetch("v9")


def test_no_network_is_said(hub: Hub) -> None:
    hub.close()
    with pytest.raises(CheckpointError, match="the Hub cannot be reached"):
        fetch()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("odd\nx")])
def test_any_other_failure_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(source, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match=type(error).__name__) as caught:
        fetch()
    assert "\n" not in str(caught.value)


def probe(name: str = "org/tiny", revision: str | None = None) -> FoundModel | None:
    return source.fetch(WantedModel(name, revision, probe=True))


def test_a_probe_fetches_nothing(hub: Hub) -> None:
    assert probe() == FoundModel(Path("org/tiny"), FIRST)
    assert probe(revision="v2") == FoundModel(Path("org/tiny"), SECOND)
    assert hub.files_asked() == set()
    hub.asked.clear()
    assert probe(revision=FIRST) == FoundModel(Path("org/tiny"), FIRST)
    assert hub.asked == []  # a commit may be here already


def test_a_probe_finds_what_is_not_there(hub: Hub) -> None:
    with pytest.raises(CheckpointError, match=r"^org/none cannot be fetched: .*no such model"):
        probe("org/none")
    with pytest.raises(CheckpointError, match=r"^org/tiny \(revision v9\) .* no such revision"):
        probe(revision="v9")


def test_a_probe_leaves_what_it_cannot_tell(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.refused = (503, "")
    assert probe() == FoundModel(Path("org/tiny"), "main")
    hub.refused = None
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert probe("org/none") == FoundModel(Path("org/none"), "main")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    hub.close()
    assert probe() == FoundModel(Path("org/tiny"), "main")


def test_a_probe_passes_what_was_fetched_before(hub: Hub) -> None:
    first = fetch(weights=True)
    hub.refused = (401, "RepoNotFound")
    assert probe() == FoundModel(Path("org/tiny"), "main")
    assert fetch(weights=True) == first
