"""What a model is to the engine, and how a model directory's configuration is read.

Architectures themselves are plugins (hook `hotshoe_models`).
"""

from hotshoe.models.base import Model, ModelBuilder
from hotshoe.models.config import ModelConfig

__all__ = ["Model", "ModelBuilder", "ModelConfig"]
