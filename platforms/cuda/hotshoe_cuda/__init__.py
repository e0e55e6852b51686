"""Hotshoe on NVIDIA GPUs."""
