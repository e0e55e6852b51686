"""Online quantization of any unquantized checkpoint.

Weights are quantized while they load, to the nearest value. With eight bits for both operands
(W8A8) they have a scale per output channel, and activations, in every step, one per token.
Otherwise weights alone are quantized. Says so as data; the kernels behind slot `linear` do it.
"""

from __future__ import annotations

from functools import partial

from hotshoe.errors import ConfigError
from hotshoe.layers import OnlineFormat, Storage
from hotshoe.slots import QuantSpec


class Grouped(OnlineFormat):
    """Weights with a scale for each group of inputs; see `hotshoe.layers.WeightFormat`.

    Args:
        weight: Its form.
    """

    def __init__(self, weight: QuantSpec) -> None:
        super().__init__(Storage(weight))
        self._group = weight.group_size or 1

    def storage(self, layer: str, shape: tuple[int, int]) -> Storage | None:
        """Return the one form.

        Raises:
            ConfigError: Groups do not divide the inputs.
        """
        if shape[1] % self._group:
            raise ConfigError(
                f"quantization: groups of {self._group} do not divide the {shape[1]} inputs of "
                f"{layer}; use a smaller one, such as int4_32, or int8"
            )
        return super().storage(layer, shape)


def both(number: str) -> OnlineFormat:
    """Quantize weights and activations.

    Args:
        number: As `QuantSpec.format` names it.
    """
    weight = QuantSpec(number, "channel", online=True)
    return OnlineFormat(Storage(weight, QuantSpec(number, "token", dynamic=True)))


def int8_weights() -> OnlineFormat:
    """Quantize weights alone, with a scale per output channel."""
    return OnlineFormat(Storage(QuantSpec("int8", "channel", online=True)))


def int4(size: int = 64) -> OnlineFormat:
    """Quantize weights alone, to four bits, with a scale for each group of inputs."""
    return Grouped(QuantSpec("int4", "group", size, online=True))


int8 = partial(both, "int8")
fp8 = partial(both, "fp8_e4m3")
int4_32 = partial(int4, 32)
int4_128 = partial(int4, 128)
