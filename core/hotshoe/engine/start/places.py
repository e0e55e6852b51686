"""Finds the directory or file of a model or tokenizer: a path, a plugin's name for one, or what a
source has fetched. The only place that decides which of them a name is, and that opens files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hotshoe.config import EngineConfig
from hotshoe.errors import CheckpointError, ConfigError, HotshoeError, PluginError
from hotshoe.foreign import cause_of, foreign
from hotshoe.lazy import resolve_lazy
from hotshoe.models import ModelConfig
from hotshoe.models.model_file import ModelFile, ModelFileFormat
from hotshoe.models.source import FoundModel, WantedModel
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import blaming_plugin
from hotshoe.text.tokenizer import Tokenizer

FILES = "hotshoe_model_files"
#: One of several models in a directory, written after a colon.
VARIANT = re.compile(r"(?P<name>.+):(?P<variant>[\w.-]+)", re.ASCII | re.DOTALL)


def find_model(config: EngineConfig, plugins: PluginManager, weights: bool = False) -> FoundModel:
    """Return the model's directory or file, with its weights or with what describes it.

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


def is_here(*names: str) -> bool:
    """Tell without plugins whether no source needs to be asked."""
    return all("/" not in name or name[0] in "/.~" or _exists(name) for name in names)


def check_model(config: EngineConfig, plugins: PluginManager) -> None:
    """Read what describes a model of this machine, and ask the source of any other whether it has
    it, which fetches nothing.

    Raises:
        UserError: It is missing, cannot be read, or says nothing of its architecture.
    """
    path = place_of(config, plugins)
    if path is None:
        return
    if path.suffix.removeprefix(".") not in plugins.mapping(FILES) or not path.is_file():
        ModelConfig.load(path, config.hf_overrides)
    elif not os.access(path, os.R_OK):
        raise CheckpointError(f"{path} cannot be read: permission denied")


def place_of(config: EngineConfig, plugins: PluginManager) -> Path | None:
    """Return where a model is on this machine, or would be; None where a source has it.

    Raises:
        UserError: A source does not have it.
    """
    if is_here(config.model):
        return find_model(config, plugins).path
    folder = _folder(config)
    found = _find(WantedModel(config.model, config.revision, folder, probe=True), plugins)
    return found.path if found.revision is None else None


def open_model(path: Path, plugins: PluginManager) -> ModelFile | None:
    """Open a model that is a file; None for a directory, and for a file that no plugin reads.

    Raises:
        CheckpointError: The file cannot be used.
        PluginError: The plugin that reads it is broken.
    """
    ending = path.suffix.removeprefix(".")
    if ending not in plugins.mapping(FILES) or path.is_dir():
        return None
    with blaming_plugin(plugins, FILES, ending):
        return _format(ending, plugins).open(path)


def read_tokenizer(path: Path, plugins: PluginManager) -> Tokenizer:
    """Read the tokenizer of a model directory or file.

    Raises:
        CheckpointError: There is none, or it is malformed.
    """
    if not (path / "tokenizer.json").exists():
        path = _chosen(FoundModel(path), None, plugins).path
    file = open_model(path, plugins)
    return Tokenizer.load(path) if file is None else Tokenizer.of_file(path, file)


def _format(ending: str, plugins: PluginManager) -> ModelFileFormat:
    found: ModelFileFormat = resolve_lazy(plugins.pick("kind of file", ending, FILES))
    return found


def _chosen(found: FoundModel, variant: str | None, plugins: PluginManager) -> FoundModel:
    """Return the file of a directory that is meant, or the directory itself.

    A checkpoint of safetensors with config.json comes before files, unless a variant is asked for.

    Raises:
        CheckpointError: There are several models, or none of this variant.
    """
    if not os.path.isdir(found.path):  # noqa: PTH112 (which takes names that no file can have)
        return found
    names = [entry.name for entry in found.path.iterdir() if entry.is_file()]
    if variant is not None:  # large ones often have a folder each
        inner = (path for path in found.path.glob("*/*") if os.path.isfile(path))  # noqa: PTH113
        names += [path.relative_to(found.path).as_posix() for path in inner]
    plain = "config.json" in names and any(name.endswith(".safetensors") for name in names)
    if variant is None and plain:
        return found
    for ending in sorted(plugins.mapping(FILES)):
        with blaming_plugin(plugins, FILES, ending):
            chosen = _format(ending, plugins).choose(names, variant)
        if chosen is not None:
            return replace(found, path=found.path / chosen)
    if variant is not None:
        raise CheckpointError(f"{found.path} has no file of a variant {variant!r}")
    return found


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
    if "://" in wanted.name:
        raise ConfigError(
            f"{wanted.name!r} is a URL, from which nothing is fetched; give a local file or "
            "directory, or ORGANIZATION/MODEL"
        )
    named = plugins.mapping("hotshoe_named_models")
    parts = VARIANT.fullmatch(wanted.name)
    if parts is None or wanted.name in named or _exists(wanted.name):
        return _chosen(_place(wanted, named, plugins), None, plugins)
    wanted = replace(wanted, name=parts["name"], variant=parts["variant"])
    return _chosen(_place(wanted, named, plugins), wanted.variant, plugins)


def _place(wanted: WantedModel, named: Mapping[str, str], plugins: PluginManager) -> FoundModel:
    if wanted.name not in named and not _exists(wanted.name):
        for source, reference in sorted(plugins.mapping("hotshoe_model_sources").items()):
            found = _ask(source, reference, wanted)
            if found is not None:
                return found
    try:
        return FoundModel(Path(named.get(wanted.name, wanted.name)).expanduser())
    except RuntimeError as error:
        raise ConfigError(f"model {wanted.name!r}: {error}") from None


def _ask(source: str, reference: str, wanted: WantedModel) -> FoundModel | None:
    def blame(error: BaseException) -> PluginError:
        return PluginError(f"model source {source}: {cause_of(error)}")

    with foreign(blame, (HotshoeError,)):
        found: FoundModel | None = resolve_lazy(reference)(wanted)
    return found


def _exists(name: str) -> bool:
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError):  # no name that a file can have, or nobody's home
        return False
