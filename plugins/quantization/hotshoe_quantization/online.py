"""Online quantization to eight bits (W8A8) of any unquantized checkpoint.

Weights are quantized while they load, with a scale per output channel; activations in every step,
with a scale per token. Says so as data; the kernels behind slot `linear` do it.
"""

from functools import partial

from hotshoe.layers import OnlineFormat, Storage
from hotshoe.slots import QuantSpec


def online(format: str) -> OnlineFormat:
    """Return the format of a checkpoint that is quantized while it loads.

    Args:
        format: As `QuantSpec` names it.
    """
    weight = QuantSpec(format, "channel", online=True)
    return OnlineFormat(Storage(weight, QuantSpec(format, "token", dynamic=True)))


int8 = partial(online, "int8")
fp8 = partial(online, "fp8_e4m3")
