"""The XPU platform: which Intel GPU this is and what serves it.

Detection goes through the kernel's files; the device is first touched in `activate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotshoe.errors import PlatformError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import Candidate
from hotshoe_triton.gpu import GpuPlatform
from hotshoe_xpu import candidates
from hotshoe_xpu.sysfs import MASK, Gpu, gpus
from hotshoe_xpu.targets import TARGETS, describe


class XpuPlatform(GpuPlatform[Gpu]):
    """Intel GPUs of the parts in `parts.py`."""

    name = "xpu"
    targets = TARGETS
    stack, constant, hides = "XPU", "xpu", MASK

    def gpus(self) -> Sequence[Gpu]:
        return gpus(self._root)

    def facts(self) -> DeviceFacts:
        return describe(self.chosen().part, self._options.device, candidates.has_triton())

    def candidates(self) -> Sequence[Candidate]:
        return candidates.offered()

    def taken(self, gpu: Gpu, device: Any) -> Mapping[str, object]:
        import torch

        if device.device_id != gpu.device_id:
            raise PlatformError(
                f"PyTorch sees {device.name} at xpu:{self._options.device}, where the kernel has "
                f"{gpu.name}; choose another by {MASK} or platform_options.device"
            )
        return {"xpu": torch.version.xpu, "driver": device.driver_version, "kernel": gpu.driver}
