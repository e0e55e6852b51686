"""What a model is to the engine (`base`), and how a model directory's configuration is read.

Architectures themselves are plugins (hook `hotshoe_models`). This module imports no torch.
"""

from hotshoe.models.config import ModelConfig

__all__ = ["ModelConfig"]
