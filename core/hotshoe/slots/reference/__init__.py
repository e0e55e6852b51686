"""Plain-PyTorch implementations of every slot.

The oracle of all others, and what a new platform runs on at first.
"""
