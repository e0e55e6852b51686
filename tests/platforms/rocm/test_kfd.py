"""The kernel's topology becomes plain data; what it does not say has a cause."""

from pathlib import Path

import pytest
from tests.platforms.rocm.conftest import MI250X, MI300X, PARTS, RAPHAEL, RX7900XTX, Machine

from hotshoe_rocm import kfd
from hotshoe_triton.detection import DriverFailureError, NoDriverError


@pytest.mark.parametrize(
    ("version", "arch"),
    [
        (90010, "gfx90a"),
        (90402, "gfx942"),
        (90500, "gfx950"),
        (100306, "gfx1036"),
        (110000, "gfx1100"),
        (110501, "gfx1151"),
        (120000, "gfx1200"),
        (120001, "gfx1201"),
    ],
)
def test_versions_name_architectures(version: int, arch: str) -> None:
    assert kfd.arch_of(version) == arch


@pytest.mark.parametrize(
    ("arch", "units"), [*zip(PARTS, (110, 304, 256, 96, 40, 32, 64), strict=True)]
)
def test_parts_are_read(machine: Machine, arch: str, units: int) -> None:
    part = PARTS[arch]
    [node] = kfd.nodes(machine.plug(part).root)
    assert (node.arch, node.compute_units) == (arch, units)
    assert node.memory_bytes == part.memory_bytes, "the host's memory bank does not count"
    assert node.uuid == f"GPU-{part.unique_id:016x}"
    assert node.product == part.product


def test_processors_are_no_gpus_and_nodes_come_in_order(machine: Machine) -> None:
    found = kfd.nodes(machine.plug(*[RX7900XTX] * 10, MI300X).root)
    assert [node.number for node in found] == list(range(1, 12))
    assert found[-1].arch == "gfx942"


def test_a_node_that_a_container_hides_is_left_out(machine: Machine, monkeypatch) -> None:
    machine.plug(MI250X, MI300X)
    read = Path.read_text

    def guarded(path: Path, *args: object) -> str:
        if path.parent.parent.name == "nodes" and path.parent.name == "1":
            raise PermissionError(path)
        return read(path, *args)

    monkeypatch.setattr(Path, "read_text", guarded)
    assert [node.arch for node in kfd.nodes(machine.root)] == ["gfx942"]


def test_a_line_of_a_later_kernel_does_not_disturb(machine: Machine) -> None:
    machine.plug(MI300X)
    path = machine.root / "sys/class/kfd/kfd/topology/nodes/1/properties"
    path.write_text("some_mask 0xff\nempty\n" + path.read_text())
    assert kfd.nodes(machine.root)[0].arch == "gfx942"


def test_no_gpu(machine: Machine) -> None:
    with pytest.raises(NoDriverError, match="no AMD GPU"):
        kfd.nodes(machine.root)
    with pytest.raises(NoDriverError, match="lists none"):
        kfd.nodes(machine.plug().root)


def test_a_card_with_another_driver_is_absent(machine: Machine) -> None:
    machine.card(0x1002, "radeon")
    with pytest.raises(NoDriverError, match="driver radeon, not amdgpu"):
        kfd.nodes(machine.root)


def test_a_card_whose_driver_does_not_compute_is_broken(machine: Machine) -> None:
    machine.card(0x1002, "amdgpu")
    with pytest.raises(
        DriverFailureError, match="card0 is an AMD GPU, but its driver offers no /dev/kfd"
    ):
        kfd.nodes(machine.root)


def test_another_vendors_card_is_nothing(machine: Machine) -> None:
    machine.card(0x10DE, "nvidia")
    with pytest.raises(NoDriverError, match="no AMD GPU") as caught:
        kfd.nodes(machine.root)
    assert "card0" not in str(caught.value)


def test_usable_means_that_the_device_opens(machine: Machine) -> None:
    machine.plug(RAPHAEL)
    assert kfd.usable(machine.root)
    (machine.root / "dev/kfd").unlink()
    assert not kfd.usable(machine.root)
