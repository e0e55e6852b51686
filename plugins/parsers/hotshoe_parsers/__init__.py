"""Formats of tool calls and reasoning; see `hotshoe_parsers.plugin` for their names."""
