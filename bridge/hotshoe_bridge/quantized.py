"""Linear layers of engines, by methods of quantization that their users choose by name.

Method `hotshoe` takes checkpoints as they are, also quantized ones that a format of ours reads;
`hotshoe_int8` and its likes quantize while they load. Engines that descend from one another ask in
the same words, so what differs is data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hotshoe.layers import WeightFormat
from hotshoe_bridge.operations import DTYPES, Operations
from hotshoe_bridge.weights import NAME, Stacked, check_needless, format_of, multiplied, needless

#: Places of stacked matrices by what loaders of engines call them.
PARTS = {"q": 0, "k": 1, "v": 2}


@dataclass(frozen=True)
class Host:
    """An engine's classes.

    Attributes:
        config: Base of its configurations of quantization.
        linear: Its linear layers.
        plain: Its method of layers that nobody quantizes.
        method: Base of its methods of linear layers.
        experts: Returns the method of a layer that is no linear one, of the format, the layer and
            its name; None for the engine's own.
    """

    config: Any
    linear: Any
    plain: Any
    method: Any
    experts: Callable[[WeightFormat, Any, str], Any]


def config_class(host: Host, name: str, asked: str, operations: Operations) -> type:
    """Make the class of the configuration of one of `hotshoe_bridge.weights.methods`."""

    class Config(host.config):  # type: ignore[misc,name-defined]
        """Chooses the method of each layer."""

        def __init__(self, format: WeightFormat | None = None) -> None:
            super().__init__()
            self.format = format or format_of(operations, asked, {})

        @classmethod
        def get_name(cls) -> str:
            return name

        @classmethod
        def get_supported_act_dtypes(cls) -> list[torch.dtype]:
            return list(DTYPES)

        @classmethod
        def get_min_capability(cls) -> int:
            return 0

        @staticmethod
        def get_config_filenames() -> list[str]:
            return []

        @classmethod
        def override_quantization_method(
            cls, hf_quant_cfg: Any, user_quant: str | None, hf_config: Any = None
        ) -> str | None:
            """Read a quantized checkpoint where the user names this method."""
            return NAME if name == user_quant == NAME else None

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            return cls(format_of(operations, asked, config))

        def get_scaled_act_names(self) -> list[str]:
            return []

        def get_quant_method(self, layer: Any, prefix: str) -> Any:
            if not isinstance(layer, host.linear):
                return host.experts(self.format, layer, prefix)
            make = loaded_method if self.format.online else stored_method
            return make(host, self.format, self._names(prefix), operations)

        def _names(self, prefix: str) -> list[str]:
            """Return the checkpoint's names of the matrices of a layer."""
            above, _, last = prefix.rpartition(".")
            parts = self.packed_modules_mapping.get(last, [last])
            return [f"{above}.{part}" if above else part for part in parts]

    return Config


def loaded_method(
    host: Host, format: WeightFormat, names: list[str], operations: Operations
) -> Any:
    """Return the method of plain numbers, which the format may quantize once they are loaded."""

    class Method(host.plain):  # type: ignore[misc,name-defined]
        """Prepares this rank's part of the weight once it is loaded."""

        def process_weights_after_loading(self, layer: Any) -> None:
            rows, columns = layer.weight.shape
            dtype = DTYPES[layer.weight.dtype]
            stacked = Stacked(format, names[:1], [rows], columns, dtype)
            stacked.take("weight", 0, layer.weight.data)
            layer.hotshoe = stacked.operation(operations)

        def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
            return multiplied(layer.hotshoe, x, bias)

    return Method()


def stored_method(
    host: Host, format: WeightFormat, names: list[str], operations: Operations
) -> Any:
    """Return the method of a quantized checkpoint."""

    class Method(host.method):  # type: ignore[misc,name-defined]
        """Takes each tensor as the format has it, whatever the engine would make of it."""

        def create_weights(
            self,
            layer: Any,
            input_size_per_partition: int,
            output_partition_sizes: list[int],
            input_size: int,
            output_size: int,
            params_dtype: torch.dtype,
            **more: Any,
        ) -> None:
            whole = input_size_per_partition == input_size
            if not whole or sum(output_partition_sizes) != output_size:
                raise ValueError(
                    f"quantization {NAME}: quantized checkpoints are for one rank, and {names[0]} "
                    "is divided among several; use that engine's own method there"
                )
            sizes, parts = list(output_partition_sizes), list(names)
            if len(sizes) != len(parts):
                sizes, parts = [sum(sizes)], parts[:1]
            stacked = Stacked(format, parts, sizes, input_size, DTYPES[params_dtype])
            layer.hotshoe_stacked = stacked
            loaders = {kind: _checker(format, parts, kind) for kind in needless(format)}
            loaders |= {kind: _loader(stacked, kind) for kind in stacked.kinds}
            for kind, loader in loaders.items():
                held = nn.Parameter(torch.empty(0), requires_grad=False)
                held.weight_loader = loader  # type: ignore[attr-defined]
                layer.register_parameter(kind, held)

        def process_weights_after_loading(self, layer: Any) -> None:
            layer.hotshoe = layer.hotshoe_stacked.operation(operations)

        def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
            return multiplied(layer.hotshoe, x, bias)

    return Method()


def _loader(stacked: Stacked, kind: str) -> Any:
    def load(held: nn.Parameter, tensor: Tensor, part: str | int | None = None) -> None:
        stacked.take(kind, PARTS.get(str(part), part or 0), tensor)  # type: ignore[arg-type]

    return load


def _checker(format: WeightFormat, names: list[str], kind: str) -> Any:
    """Return what takes a tensor that nothing needs, and keeps nothing of it."""

    def check(held: nn.Parameter, tensor: Tensor, part: str | int | None = None) -> None:
        name = names[PARTS.get(str(part), part or 0)]  # type: ignore[arg-type]
        check_needless(format, f"{name}.{kind}", tensor)

    return check
