"""Hotshoe on AMD GPUs."""
