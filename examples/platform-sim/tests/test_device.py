"""The simulated device: what it refuses, what it counts, and that it really runs later."""

import gc

import pytest
import torch
from hotshoe_sim import device
from hotshoe_sim.kernels import launch


def on_device(*values: float) -> torch.Tensor:
    return torch.tensor(values).to("sim")


def test_results_are_those_of_the_host() -> None:
    x = on_device(1, 2, 3, 4).view(2, 2)
    y = torch.zeros(2, 2, device="sim")
    y[1:] += x[1:] * 2
    assert y.tolist() == [[0, 0], [6, 8]]
    assert (x @ x.T).cpu().tolist() == [[5, 11], [11, 25]]
    assert x[x > 2].tolist() == [3, 4]
    assert x.sum().item() == 10
    numbers = torch.arange(3, device="sim")
    assert numbers.shape == (3,)
    assert torch.repeat_interleave(numbers, numbers).tolist() == [1, 2, 2]


def test_a_tensor_on_the_wrong_device_is_an_error() -> None:
    x = on_device(1, 2)
    with pytest.raises(RuntimeError, match="expected all tensors on sim, but one of shape"):
        x + torch.ones(2)
    with pytest.raises(RuntimeError, match="expected all tensors on sim"):
        torch.ones(2).mul_(x)
    with pytest.raises(AssertionError, match="a kernel got a tensor on cpu"):
        launch(lambda out: None, torch.ones(2))
    assert (x + torch.tensor(1.0)).tolist() == [2, 3]


def test_the_host_cannot_read_its_memory() -> None:
    x = on_device(1, 2)
    with pytest.raises(RuntimeError, match="cannot read"):
        x.data_ptr()
    with pytest.raises((RuntimeError, TypeError)):
        x.numpy()


def test_memory_is_counted_and_runs_out() -> None:
    gc.collect()
    before = device.MEMORY.used_bytes
    x = torch.zeros(1000, device="sim")
    view = x[10:]
    assert device.MEMORY.used_bytes == before + 4000
    del x
    gc.collect()
    assert device.MEMORY.used_bytes == before + 4000
    del view
    device.QUEUE.wait()
    gc.collect()
    assert device.MEMORY.used_bytes == before
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.empty(1 << 32, device="sim")


@pytest.fixture
def held():
    """The device does not start any work while this lasts."""
    device.QUEUE.running.clear()
    yield
    device.QUEUE.running.set()


def test_work_is_done_later(held: None) -> None:
    host = torch.ones(3)
    x = torch.empty(3, device="sim")
    x.copy_(host, non_blocking=True)
    y = (x * 2).exp().sum()
    host.fill_(5)  # too early: nobody has read it yet
    assert y.shape == () and y.cell.value is None
    device.QUEUE.running.set()
    assert x.tolist() == [5, 5, 5]


def test_an_error_of_the_device_surfaces_where_somebody_waits() -> None:
    def broken(out: torch.Tensor) -> None:
        raise ValueError("parity")

    launch(broken, on_device(1))
    with pytest.raises(RuntimeError, match="sim: parity"):
        device.QUEUE.wait()
    assert on_device(3).tolist() == [3]


def test_inference_mode_changes_nothing() -> None:
    outside = torch.zeros(4, device="sim")
    with torch.inference_mode():
        outside[1:3].copy_(on_device(1, 2))
        assert outside.cpu().device.type == "cpu"
        assert outside.tolist() == [0, 1, 2, 0]
