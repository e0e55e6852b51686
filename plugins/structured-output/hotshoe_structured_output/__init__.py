"""Backends of structured output: llguidance and xgrammar behind core's grammar interface."""
