"""Online INT8 (W8A8): any unquantised checkpoint, weights and activations in eight bits.

Weights are quantised while they load, with a scale per output channel; activations in every step,
with a scale per token. Says so as data; the kernels behind slot `linear` do it.
"""

from hotshoe.slots import QuantSpec

WEIGHT = QuantSpec("int8", "channel", online=True)
ACTIVATION = QuantSpec("int8", "token", dynamic=True)


class Int8:
    """See `hotshoe.layers.Quantization`."""

    def operands(self, layer_name: str) -> tuple[QuantSpec, QuantSpec]:
        """Quantise every layer; models keep their own exceptions, such as the output matrix."""
        return WEIGHT, ACTIVATION
