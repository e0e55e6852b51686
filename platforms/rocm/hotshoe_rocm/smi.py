"""What `amdsmi`, AMD's management library, says of the GPUs, where its Python package is installed.

Everything is optional: an absent package, a library that does not load and a field that reads "N/A"
leave the answer to the kernel's topology files.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hotshoe_triton.detection import DriverFailureError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one GPU; empty or 0 where it is not told."""

    name: str = ""
    arch: str = ""
    memory_bytes: int = 0
    driver: str = ""


def entries() -> dict[int, Entry]:
    """Return what the library knows, by the node's number in the kernel's topology.

    Raises:
        DriverFailureError: It finds GPUs, and fails to describe them.
    """
    with _library() as amdsmi:
        if amdsmi is None:
            return {}
        try:
            handles = amdsmi.amdsmi_get_processor_handles()
            return dict(_describe(amdsmi, handle) for handle in handles)
        except amdsmi.AmdSmiException as error:
            raise DriverFailureError(f"amdsmi does not describe the GPUs: {error}") from None


@contextmanager
def _library() -> Iterator[Any]:
    """Open the library; None where there is none, or it finds no driver."""
    if importlib.util.find_spec("amdsmi") is None:
        yield None
        return
    try:
        amdsmi = importlib.import_module("amdsmi")
    except (ImportError, KeyError, OSError):  # what its loader raises without the C library
        yield None
        return
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException:
        yield None
        return
    try:
        yield amdsmi
    finally:
        amdsmi.amdsmi_shut_down()


def _describe(amdsmi: Any, handle: Any) -> tuple[int, Entry]:
    chip = amdsmi.amdsmi_get_gpu_asic_info(handle)
    memory = amdsmi.amdsmi_get_gpu_vram_info(handle).get("vram_size")
    driver = amdsmi.amdsmi_get_gpu_driver_info(handle).get("driver_version")
    number = amdsmi.amdsmi_get_gpu_kfd_info(handle)["node_id"]
    return number, Entry(
        name=_known(chip.get("market_name")),
        arch=_arch(_known(chip.get("target_graphics_version"))),
        memory_bytes=int(memory) * MIB if _known(memory).isdecimal() else 0,
        driver=_known(driver),
    )


def _known(value: object) -> str:
    return "" if value in (None, "N/A") else str(value)


def _arch(text: str) -> str:
    """Return a name such as gfx942; releases differ in how they write it."""
    found = re.search(r"gfx[0-9a-f]{3,4}\b", text)
    return found[0] if found else ""
