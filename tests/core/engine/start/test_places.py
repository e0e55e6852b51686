"""Where a model or tokenizer lies: paths, names of plugins, and what a source fetches."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hotshoe.config import EngineConfig
from hotshoe.engine.core.boot import boot
from hotshoe.engine.start.places import check_model, find_model, find_tokenizer, is_here
from hotshoe.engine.start.setup import prepare
from hotshoe.errors import CheckpointError, ConfigError, PluginError
from hotshoe.models.source import FoundModel, WantedModel
from hotshoe.plugins import PluginManager, hookimpl
from hotshoe.plugins.hookspecs import HOOK_API
from hotshoe.plugins.manager import EntryPoint, installed_entry_points


class Source:
    """Knows `org/model`, which lies at a path, and keeps what it was asked."""

    HOTSHOE_HOOK_API = HOOK_API

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[WantedModel] = []

    @hookimpl
    def hotshoe_named_models(self) -> dict[str, str]:
        return {"tiny": str(self.path)}

    @hookimpl
    def hotshoe_model_sources(self) -> dict[str, Callable[[WantedModel], FoundModel | None]]:
        return {"a": lambda wanted: None, "b": self.fetch}

    def fetch(self, wanted: WantedModel) -> FoundModel | None:
        self.asked.append(wanted)
        if wanted.name == "org/broken":
            raise ZeroDivisionError("no")
        if wanted.name == "org/gone":
            raise CheckpointError("org/gone has gone")
        return FoundModel(self.path, "c0ffee") if wanted.name == "org/model" else None


@pytest.fixture
def source(model_dir: Path) -> Source:
    return Source(model_dir)


@pytest.fixture
def installed(source: Source) -> PluginManager:
    return PluginManager(
        [
            *(point for point in installed_entry_points() if point.name == "core"),
            EntryPoint("source", "dist", "1", lambda: source),
        ]
    )


def test_a_name_or_a_path(
    installed: PluginManager, source: Source, model_dir: Path, tmp_path: Path
) -> None:
    for name, path in {
        "tiny": model_dir,
        str(tmp_path): tmp_path,
        "~": Path.home(),
    }.items():
        assert find_model(EngineConfig(model=name), installed) == FoundModel(path)
    assert source.asked == []
    missing = find_model(EngineConfig(model="~/no model"), installed)
    assert missing == FoundModel(Path.home() / "no model")


@pytest.mark.parametrize("name", ["~nobody-here/model", "~nobody-here"])
def test_nobodys_home_is_refused(installed: PluginManager, name: str) -> None:
    with pytest.raises(ConfigError, match=f"model '{name}'"):
        find_model(EngineConfig(model=name), installed)
    with pytest.raises(ConfigError, match=f"download_dir '{name}'"):
        find_model(EngineConfig(model="org/model", download_dir=name), installed)


def test_an_empty_name_is_refused(installed: PluginManager) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        find_model(EngineConfig(model=""), installed)
    with pytest.raises(ConfigError, match="is empty"):
        find_tokenizer(EngineConfig(tokenizer=""), installed)


@pytest.mark.parametrize("name", ["x" * 5000, "org/" + "x" * 300])
def test_names_that_no_file_can_have_are_asked_for_elsewhere(
    installed: PluginManager, name: str
) -> None:
    assert find_model(EngineConfig(model=name), installed) == FoundModel(Path(name))


def test_a_source_is_asked_for_exactly_what_is_wanted(
    installed: PluginManager, source: Source, model_dir: Path
) -> None:
    config = EngineConfig(model="org/model", revision="v1", download_dir="/big/disk")
    assert find_model(config, installed, weights=True) == FoundModel(model_dir, "c0ffee")
    assert source.asked == [WantedModel("org/model", "v1", Path("/big/disk"), True)]


def test_only_fetched_models_have_revisions(installed: PluginManager, model_dir: Path) -> None:
    with pytest.raises(ConfigError, match="revision 'v1': only a model that is fetched"):
        find_model(EngineConfig(model=str(model_dir), revision="v1"), installed)


def test_failures_of_sources(installed: PluginManager) -> None:
    with pytest.raises(CheckpointError, match="org/gone has gone"):
        find_model(EngineConfig(model="org/gone"), installed)
    with pytest.raises(PluginError, match="model source b: ZeroDivisionError: no"):
        find_model(EngineConfig(model="org/broken"), installed)
    with pytest.raises(CheckpointError, match="no model at org/unknown"):
        prepare(EngineConfig(model="org/unknown", platform="null"), installed)


def test_a_tokenizer_of_its_own(installed: PluginManager, source: Source, model_dir: Path) -> None:
    assert find_tokenizer(EngineConfig(), installed) is None
    config = EngineConfig(model="tiny", tokenizer="org/model", platform="null")
    assert find_tokenizer(config, installed) == FoundModel(model_dir, "c0ffee")
    setup = prepare(config, installed)
    assert setup.config.tokenizer == str(model_dir)
    [change] = [change for change in setup.changes if change.field == "tokenizer"]
    assert change.reason == "org/model as fetched, revision c0ffee"
    assert not any(wanted.weights for wanted in source.asked)


def test_what_is_here(model_dir: Path) -> None:
    assert is_here("demo")
    assert is_here(str(model_dir), str(model_dir))
    assert is_here("/no/such/model", "./none", "~/none", "")
    assert not is_here("org/model")
    assert not is_here("demo", "org/model")


def test_a_model_is_missed_before_anything_is_started(
    installed: PluginManager, source: Source, model_dir: Path, tmp_path: Path
) -> None:
    check_model(EngineConfig(model=str(model_dir)), installed)
    for name in ("none", "./none", str(tmp_path / "none")):
        with pytest.raises(CheckpointError, match="no model at "):
            check_model(EngineConfig(model=name), installed)
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        check_model(EngineConfig(model=str(tmp_path)), installed)
    source.asked.clear()
    check_model(EngineConfig(model="org/model", revision="v1"), installed)
    with pytest.raises(CheckpointError, match="org/gone has gone"):
        check_model(EngineConfig(model="org/gone"), installed)
    with pytest.raises(CheckpointError, match="no model at "):  # no source knows it
        check_model(EngineConfig(model="org/other"), installed)
    wanted = [("org/model", "v1"), ("org/gone", None), ("org/other", None)]
    assert source.asked == [WantedModel(*one, probe=True) for one in wanted]


def test_weights_come_last_and_from_the_revision_that_was_described(
    installed: PluginManager, source: Source, model_dir: Path
) -> None:
    booted = boot(EngineConfig(model="org/model", platform="null"), installed)
    assert source.asked == [
        WantedModel("org/model"),
        WantedModel("org/model", "c0ffee", weights=True),
    ]
    assert (booted.info.config.revision, booted.info.model_path) == ("c0ffee", str(model_dir))
    assert booted.info.config.model == "org/model"
    assert "fetch weights" in booted.info.startup


def test_dummy_weights_are_not_fetched(installed: PluginManager, source: Source) -> None:
    booted = boot(EngineConfig(model="org/model", platform="null", load_format="dummy"), installed)
    assert source.asked == [WantedModel("org/model")]
    assert "fetch weights" not in booted.info.startup


def test_a_bad_configuration_is_refused_before_weights_are_fetched(
    installed: PluginManager, source: Source
) -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        boot(EngineConfig(model="org/model", platform="null", max_model_len=2**20), installed)
    assert source.asked == [WantedModel("org/model")]
