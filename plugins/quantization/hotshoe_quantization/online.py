"""Online quantisation to eight bits (W8A8) of any unquantised checkpoint.

Weights are quantised while they load, with a scale per output channel; activations in every step,
with a scale per token. Says so as data; the kernels behind slot `linear` do it.
"""

from functools import partial

from hotshoe.slots import QuantSpec


class Online:
    """See `hotshoe.layers.Quantization`.

    Args:
        format: As `QuantSpec` names it.
    """

    def __init__(self, format: str) -> None:
        self._weight = QuantSpec(format, "channel", online=True)
        self._activation = QuantSpec(format, "token", dynamic=True)

    def operands(self, layer_name: str) -> tuple[QuantSpec, QuantSpec]:
        """Quantise every layer; models keep their own exceptions, such as the output matrix."""
        return self._weight, self._activation


int8 = partial(Online, "int8")
fp8 = partial(Online, "fp8_e4m3")
