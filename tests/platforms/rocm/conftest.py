"""A machine with the AMD GPUs that a test wants: the kernel's files, and what `amdsmi` answers.

Numbers are those that such machines show; what a test does not look at is left out.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hotshoe_triton import gpu
from hotshoe_triton.device import KIB


@dataclass(frozen=True)
class Part:
    """One device as KFD's topology shows it, and the name that `amdsmi` gives it."""

    name: str
    version: int
    device_id: int
    simds: int
    simds_per_unit: int
    wave: int
    lds_kib: int
    memory_bytes: int
    unique_id: int
    product: str = ""


MI250X = Part(
    "AMD Instinct MI250X", 90010, 0x7408, 440, 4, 64, 64, 68_702_699_520, 0x7DE7_3CB3_1D4A_57F1
)
MI300X = Part(
    "AMD Instinct MI300X",
    90402,
    0x74A1,
    1216,
    4,
    64,
    64,
    206_141_652_992,
    0xADAA_9311_0835_EDCD,
    "AMD Instinct MI300X OAM",
)
MI355X = Part(
    "AMD Instinct MI355X", 90500, 0x75A3, 1024, 4, 64, 160, 309_220_868_096, 0x1F2E_44D0_0C07_9A11
)
RX7900XTX = Part(
    "AMD Radeon RX 7900 XTX", 110000, 0x744C, 192, 2, 32, 64, 25_753_026_560, 0xA200_9FE6_5511_A1F7
)
#: A processor's own graphics; most of the machine's memory may be set apart for it.
STRIX_HALO = Part(
    "AMD Radeon 8060S", 110501, 0x1586, 80, 2, 32, 64, 103_079_215_104, 0x3C41_77D0_0A1B_5E62
)
RX9060XT = Part(
    "AMD Radeon RX 9060 XT", 120000, 0x7590, 64, 2, 32, 64, 17_095_983_104, 0x51B8_0D3E_9927_64CF
)
RX9070XT = Part(
    "AMD Radeon RX 9070 XT", 120001, 0x7550, 128, 2, 32, 64, 17_095_983_104, 0x0B64_92C1_DE00_4D21
)
#: The graphics in a desktop processor: two compute units, no kernels for it.
RAPHAEL = Part("AMD Radeon Graphics", 100306, 0x164E, 4, 2, 32, 64, 536_870_912, 0)
PARTS = {
    "gfx90a": MI250X,
    "gfx942": MI300X,
    "gfx950": MI355X,
    "gfx1100": RX7900XTX,
    "gfx1151": STRIX_HALO,
    "gfx1200": RX9060XT,
    "gfx1201": RX9070XT,
}


class Machine:
    """Files under a folder that stands for the file system's root."""

    def __init__(self, root: Path, modules: Callable[[str, object], None]) -> None:
        self.root, self._modules = root, modules
        self.parts: list[Part] = []

    def plug(self, *parts: Part) -> Machine:
        """Put GPUs in, behind the processor's node."""
        self.node(0, {"cpu_cores_count": 64, "simd_count": 0, "gfx_target_version": 0})
        for part in parts:
            number = len(self.parts) + 1
            self.parts.append(part)
            minor = 127 + number
            values = {
                "cpu_cores_count": 0,
                "simd_count": part.simds,
                "lds_size_in_kb": part.lds_kib,
                "wave_front_size": part.wave,
                "simd_per_cu": part.simds_per_unit,
                "gfx_target_version": part.version,
                "vendor_id": 0x1002,
                "device_id": part.device_id,
                "drm_render_minor": minor,
                "unique_id": part.unique_id,
            }
            folder = self.node(number, values)
            bank = {"heap_type": 1, "size_in_bytes": part.memory_bytes, "width": 4096}
            host = {"heap_type": 0, "size_in_bytes": 1 << 40}
            for i, values in enumerate((bank, host)):
                self.write(folder / "mem_banks" / str(i) / "properties", values)
            if part.product:
                board = self.root / f"sys/class/drm/renderD{minor}/device/product_name"
                board.parent.mkdir(parents=True)
                board.write_text(part.product + "\n")
        device = self.root / "dev/kfd"
        device.parent.mkdir(exist_ok=True)
        device.touch()
        return self

    def node(self, number: int, values: dict[str, int]) -> Path:
        folder = self.root / f"sys/class/kfd/kfd/topology/nodes/{number}"
        self.write(folder / "properties", values)
        (folder / "name").write_text("ip discovery\n")
        return folder

    def write(self, path: Path, values: dict[str, int]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{name} {value}\n" for name, value in values.items()))

    def card(self, vendor: int, driver: str) -> None:
        """Put a graphics card in that the compute driver does not know."""
        device = self.root / "sys/class/drm/card0/device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor:#06x}\n")
        target = self.root / "sys/bus/pci/drivers" / driver
        target.mkdir(parents=True)
        (device / "driver").symlink_to(target)

    def install_amdsmi(self, **answers: object) -> FakeSmi:
        """Install the management library's package; `answers` replace what it says of a chip."""
        fake = FakeSmi(self.parts, answers)
        fake.__spec__ = importlib.machinery.ModuleSpec("amdsmi", None)
        self._modules("amdsmi", fake)
        return fake


class FakeSmi(types.ModuleType):
    """The functions of `amdsmi` that are used. Handles are positions."""

    class AmdSmiException(Exception):  # noqa: N818
        pass

    def __init__(self, parts: list[Part], answers: dict[str, object]) -> None:
        super().__init__("amdsmi")
        self.parts, self.answers, self.open = parts, answers, 0
        self.no_driver = False

    def amdsmi_init(self) -> None:
        if self.no_driver:
            raise self.AmdSmiException("AMDSMI_STATUS_DRIVER_NOT_LOADED")
        self.open += 1

    def amdsmi_shut_down(self) -> None:
        self.open -= 1

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(len(self.parts)))[::-1]

    def amdsmi_get_gpu_asic_info(self, handle: int) -> dict[str, object]:
        part = self.parts[handle]
        major, minor, step = part.version // 10000, part.version // 100 % 100, part.version % 100
        return {
            "market_name": part.name,
            "vendor_id": 0x1002,
            "device_id": part.device_id,
            "asic_serial": f"{part.unique_id:#018x}",
            "num_compute_units": part.simds // part.simds_per_unit,
            "target_graphics_version": f"gfx{major}{minor:x}{step:x}",
        } | self.answers

    def amdsmi_get_gpu_vram_info(self, handle: int) -> dict[str, object]:
        size = self.answers.get("vram_size", self.parts[handle].memory_bytes >> 20)
        return {"vram_type": 1, "vram_size": size}

    def amdsmi_get_gpu_driver_info(self, handle: int) -> dict[str, object]:
        return {"driver_name": "amdgpu", "driver_version": "6.12.12"}

    def amdsmi_get_gpu_kfd_info(self, handle: int) -> dict[str, object]:
        return {"kfd_id": 4711, "node_id": handle + 1}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine without a GPU and without `amdsmi`, whatever runs the tests."""
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("HSA_OVERRIDE_GFX_VERSION", raising=False)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: (
            getattr(sys.modules[name], "__spec__", None) if name == "amdsmi" else find(name)
        ),
    )
    return Machine(tmp_path, lambda name, module: monkeypatch.setitem(sys.modules, name, module))


@pytest.fixture
def rocm_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that was built for ROCm."""
    build = {"__version__": "2.11.0+rocm7.1", "hip": "7.1.25424", "cuda": None, "xpu": None}
    monkeypatch.setattr(gpu, "torch_build", lambda: build)


def lds_bytes(part: Part) -> int:
    """Return the shared memory of a compute unit."""
    return part.lds_kib * KIB
