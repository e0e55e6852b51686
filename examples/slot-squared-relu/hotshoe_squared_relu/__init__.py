"""Slot `squared_relu`, from outside of Hotshoe."""
