"""Adapters from a hub, with the real client library against one on this machine."""

from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest
from tests.plugins.hub.conftest import Hub

from hotshoe.errors import CheckpointError
from hotshoe.models.source import ADAPTER_FILES
from hotshoe_hub.adapters import MAX_BYTES, find_adapter

CONFIG, WEIGHTS = ADAPTER_FILES

pytestmark = pytest.mark.usefixtures("at_hub")


@pytest.fixture
def adapter(hub: Hub) -> Hub:
    """A hub whose repository has an adapter, too."""
    for name in (*ADAPTER_FILES, "adapter_model.bin", "optimizer.pt"):
        (hub.directory / name).write_text("{}" + name)
    return hub


@pytest.mark.parametrize(
    "name", ["demo", "/srv/tiny", "./org", "../tiny", "org/../tiny", "a/b/c", "org/tiny@main", "a/"]
)
def test_other_names_are_nobodys(name: str, hub: Hub) -> None:
    assert find_adapter(name, None) is None
    assert hub.asked == []


def test_two_files_come_and_no_others(adapter: Hub, tmp_path: Path) -> None:
    found = find_adapter("org/tiny", tmp_path / "mine")
    assert found is not None and found.is_relative_to(tmp_path / "mine")
    assert {path.name for path in found.iterdir()} == set(ADAPTER_FILES)
    assert adapter.files_asked() == set(ADAPTER_FILES)


def test_a_model_is_no_adapter(hub: Hub) -> None:
    assert find_adapter("org/tiny", None) is None
    assert hub.files_asked() == set()


def test_an_unknown_name_is_nobodys(hub: Hub) -> None:
    assert find_adapter("org/none", None) is None


@pytest.mark.parametrize(("size", "said"), [(MAX_BYTES + 1, "bytes"), (None, "nobody knows")])
def test_sizes_are_known_before_anything_is_fetched(
    adapter: Hub, size: int | None, said: str
) -> None:
    adapter.sizes = {WEIGHTS: size}
    with pytest.raises(CheckpointError, match=rf"org/tiny is not fetched: .*{said}"):
        find_adapter("org/tiny", None)
    assert adapter.files_asked() == set()


def test_what_was_downloaded_serves_while_the_hub_is_away(
    adapter: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Path(huggingface_hub.snapshot_download("org/tiny", allow_patterns=[*ADAPTER_FILES]))
    adapter.refused = (503, "")
    assert find_adapter("org/tiny", None) == first
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert find_adapter("org/tiny", None) == first


@pytest.mark.parametrize(
    ("refused", "message"), [((403, "GatedRepo"), "accepted their terms"), ((503, ""), "reached")]
)
def test_failures_are_said(adapter: Hub, refused: tuple[int, str], message: str) -> None:
    adapter.refused = refused
    with pytest.raises(CheckpointError, match=f"^org/tiny cannot be fetched: .*{message}"):
        find_adapter("org/tiny", None)
