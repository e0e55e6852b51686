"""Hotshoe on Intel GPUs."""
