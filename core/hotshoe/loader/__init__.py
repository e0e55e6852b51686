"""Weights for a model's layers: from safetensors files, from a sender, or random values."""

from hotshoe.loader.checkpoint import Target, load_weights, update_weights

__all__ = ["Target", "load_weights", "update_weights"]
