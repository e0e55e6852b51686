"""Ranks of a Hotshoe engine on a Ray cluster."""
