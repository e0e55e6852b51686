"""Heads that make drafts and lie in a directory of their own: found, checked, built on a model.

Which methods of speculation have one, plugins say (hook `hotshoe_heads`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.config import EngineConfig
from hotshoe.engine.start.places import find_model
from hotshoe.errors import CheckpointError, ConfigError, UserError
from hotshoe.lazy import resolve_lazy
from hotshoe.models import ModelConfig
from hotshoe.models.quantization import stored_quantization
from hotshoe.models.source import FoundModel
from hotshoe.platform import Change
from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import blaming_plugin
from hotshoe.speculation.drafting import HEADS, lies_apart
from hotshoe.types.trees import NoTreesError

if TYPE_CHECKING:
    from hotshoe.layers import BuildContext
    from hotshoe.models.base import Model, ModelBuilder

NAME = "speculative_config.model"


def find_head(config: EngineConfig, plugins: PluginManager) -> list[Change]:
    """Fetch the head that a configuration names, so that every process works with the same.

    Raises:
        UserError: It is not named, or not there.
    """
    options = dict(config.speculative_config or {})
    if not lies_apart(options, plugins.mapping(HEADS)):
        return []
    name, revision = options.get("model"), options.pop("revision", None)
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"{NAME} is missing; method {options['method']} needs the directory or the name of a "
            "head that was trained for the model"
        )
    if not isinstance(revision, str | None):
        raise ConfigError(f"speculative_config.revision must be a text, not {revision!r}")
    wanted = replace(EngineConfig(name), revision=revision, download_dir=config.download_dir)
    with _naming(name):
        found: FoundModel = find_model(wanted, plugins, weights=config.load_format != "dummy")
    return [Change("speculative_config", options | {"model": str(found.path)}, "where it lies")]


def with_head(
    builder: ModelBuilder, options: Mapping[str, Any] | None, plugins: PluginManager
) -> ModelBuilder:
    """Return what builds a model, and on it the head that the options name, if they name one."""
    if options is None or not lies_apart(options, plugins.mapping(HEADS)):
        return builder
    method, name = options["method"], options["model"]
    reference = plugins.pick("speculative_config.method", method, HEADS)

    def build(config: ModelConfig, ctx: BuildContext) -> Model:
        from hotshoe.layers.formats import PLAIN
        from hotshoe.layers.weights import WeightTable

        model = builder(config, ctx)
        with _naming(name), blaming_plugin(plugins, HEADS, method):
            head_config = _read(name)
            own = replace(ctx, weights=WeightTable(), format=PLAIN, adapters=None)
            if ctx.stage.is_last:  # which has it
                ctx.beside.append((own.weights, head_config.path))
            found: Model = resolve_lazy(reference)(head_config, own, model, config)
        return found

    return build


def _read(name: str) -> ModelConfig:
    """Read what describes a head.

    Raises:
        CheckpointError: It is malformed.
        ConfigError: Its matrices are quantized.
    """
    config = ModelConfig.load(Path(name))
    if stored_quantization(config) is not None:
        raise ConfigError("it is quantized; use a head whose matrices are plain numbers")
    return config


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Say of an error of the user's that it is the head's."""
    try:
        yield
    except NoTreesError:
        raise
    except UserError as error:
        if NAME not in str(error):
            kind = CheckpointError if isinstance(error, CheckpointError) else ConfigError
            raise kind(f"{NAME} {name}: {error}") from error
        raise
