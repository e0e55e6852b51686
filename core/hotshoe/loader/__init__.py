"""Weights from a model directory: safetensors files, or random values of the right shapes."""

from hotshoe.loader.checkpoint import load_weights

__all__ = ["load_weights"]
