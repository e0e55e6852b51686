"""The worker's own duties: memory that does not suffice is a matter for the user, in words."""

import re
from types import SimpleNamespace

import pytest
import torch

from hotshoe.config import EngineConfig
from hotshoe.errors import MemoryLimitError
from hotshoe.layers import BuildContext
from hotshoe.platform import DeviceFacts
from hotshoe.runner.worker import TorchWorker, _enough_memory

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


def check(num_elements: int, dtype: str, quantized: bool = False, size: int = 1) -> None:
    selector = SimpleNamespace(facts=FACTS)
    worker = TorchWorker(
        EngineConfig(), None, None, selector, None, object() if quantized else None
    )
    ctx = BuildContext(selector, dtype, dtype, 16, 64, size=size)
    ctx.weights.expect("a", (num_elements // 2,), lambda tensor: None)
    ctx.weights.expect("b", (num_elements // 2 // 4, 4), lambda tensor: None)
    worker._check_weights(ctx)


def test_weights_that_cannot_fit_are_refused_before_they_are_loaded() -> None:
    check(1 << 28, "float32")
    with pytest.raises(MemoryLimitError, match=re.escape("take 2.0 GiB or more, but a test's")):
        check(1 << 29, "float32")
    check(1 << 29, "bfloat16")
    check(1 << 29, "float32", size=2)
    check(1 << 31, "bfloat16", quantized=True)
    with pytest.raises(MemoryLimitError, match="tensor-parallel-size"):
        check(1 << 32, "bfloat16", quantized=True)


def test_memory_that_runs_out_is_a_user_error() -> None:
    with (
        pytest.raises(MemoryLimitError, match=re.escape("too little memory to record graphs (Out")),
        _enough_memory("record graphs"),
    ):
        raise torch.OutOfMemoryError("Out of memory. Tried to allocate 2 GiB.")
    with pytest.raises(RuntimeError, match="another"), _enough_memory("record graphs"):
        raise RuntimeError("another")
