"""Architectures that have no description of their own here, in the module tree of transformers.

transformers is optional: this module imports it when a model asks for it, and no earlier.
"""

from __future__ import annotations

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.models.base import Model

#: The first release whose attention, masks and experts are interfaces as this package needs them.
OLDEST = (5, 0)
#: Whether a plugin describes the architecture is not known here.
INSTEAD = "serve a model that `hotshoe plugins` lists, with --model-impl native"
REMEDY = f"install it (pip install 'hotshoe-models[transformers]'), or {INSTEAD}"


def build(config: ModelConfig, ctx: BuildContext) -> Model:
    """Build any causal language model that transformers has.

    Raises:
        ConfigError: transformers is absent or too old, or an option cannot be served.
        CheckpointError: transformers lacks the architecture, or it cannot run over paged caches.
    """
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(
            f"{config.architecture} is to run as transformers' code, and transformers cannot be "
            f"imported ({error}); {REMEDY}"
        ) from None
    version = transformers.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise ConfigError(
            f"{config.architecture} needs transformers {'.'.join(map(str, OLDEST))} or newer, "
            f"and {version} is installed; {REMEDY}"
        )
    from hotshoe_models.hf.model import TransformersModel

    return TransformersModel(config, ctx)
