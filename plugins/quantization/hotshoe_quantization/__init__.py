"""Quantization methods, as data for slot `linear`; see `hotshoe_quantization.plugin`."""
