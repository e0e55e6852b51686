"""Finds the directory of a model or tokenizer: a path, a plugin's name for one, or what a source
has fetched. The only place that decides which of them a name is."""

from __future__ import annotations

from pathlib import Path

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError, HotshoeError, PluginError
from hotshoe.lazy import resolve_lazy
from hotshoe.models.source import FoundModel, WantedModel
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import cause_of


def find_model(config: EngineConfig, plugins: PluginManager, weights: bool = False) -> FoundModel:
    """Return the model's directory, with its weights or with what describes it.

    Raises:
        ConfigError: The name is empty, or begins with the home of somebody unknown; a revision of
            something that has none.
        CheckpointError: A source cannot fetch it.
        PluginError: A source is broken.
    """
    found = _find(WantedModel(config.model, config.revision, _folder(config), weights), plugins)
    if config.revision is not None and found.revision is None and found.path.exists():
        raise ConfigError(
            f"revision {config.revision!r}: only a model that is fetched by name has revisions; "
            f"{config.model!r} is a directory"
        )
    return found


def find_tokenizer(config: EngineConfig, plugins: PluginManager) -> FoundModel | None:
    """Return the directory that `tokenizer` names; None where it is the model's.

    Raises:
        UserError: As for `find_model`.
    """
    if config.tokenizer is None:
        return None
    return _find(WantedModel(config.tokenizer, folder=_folder(config)), plugins)


def is_here(config: EngineConfig) -> bool:
    """Tell without plugins whether no source needs to be asked."""
    names = (config.model, config.tokenizer or config.model)
    return all("/" not in name or _exists(name) for name in names)


def _folder(config: EngineConfig) -> Path | None:
    """Return where fetched files shall go.

    Raises:
        ConfigError: It begins with the home of somebody unknown.
    """
    try:
        return Path(config.download_dir).expanduser() if config.download_dir else None
    except RuntimeError as error:
        raise ConfigError(f"download_dir {config.download_dir!r}: {error}") from None


def _find(wanted: WantedModel, plugins: PluginManager) -> FoundModel:
    if not wanted.name:
        raise ConfigError("the name of a model or tokenizer is empty; `.` is this directory")
    named = plugins.mapping("hotshoe_named_models")
    if wanted.name not in named and not _exists(wanted.name):
        for source, reference in sorted(plugins.mapping("hotshoe_model_sources").items()):
            try:
                found: FoundModel | None = resolve_lazy(reference)(wanted)
            except (HotshoeError, KeyboardInterrupt):
                raise
            except BaseException as error:
                raise PluginError(f"model source {source}: {cause_of(error)}") from error
            if found is not None:
                return found
    try:
        return FoundModel(Path(named.get(wanted.name, wanted.name)).expanduser())
    except RuntimeError as error:
        raise ConfigError(f"model {wanted.name!r}: {error}") from None


def _exists(name: str) -> bool:
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError):  # no name that a file can have, or nobody's home
        return False
