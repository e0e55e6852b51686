"""The worker's own duties: memory that does not suffice is a matter for the user, in words."""

import re
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from hotshoe.config import EngineConfig
from hotshoe.engine.start.setup import prepare
from hotshoe.errors import ConfigError, EngineError, MemoryLimitError, PlatformError
from hotshoe.layers import BuildContext
from hotshoe.platform import Available, DeviceFacts, MemoryBudget, Platform
from hotshoe.plugins import PluginManager
from hotshoe.runner.granted import check_device
from hotshoe.runner.worker import TorchWorker, enough_memory
from hotshoe.slots import SLOTS, EmbeddingSpec, LinearSpec, QuantSpec, Selector
from hotshoe.types import CacheSpec

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


class Plain(Platform):
    """A device of 1 GiB, of which so much is free."""

    name = "plain"

    def __init__(self, free_bytes: int | None = None, measures: bool = False) -> None:
        self.measures_memory = measures
        self._free_bytes = free_bytes

    def probe(self) -> Available:
        return Available(0)

    def facts(self) -> DeviceFacts:
        return FACTS

    def memory_budget(self, config: EngineConfig) -> MemoryBudget:
        assert not self.measures_memory, "asked before a step has run"
        return MemoryBudget(0, free_bytes=self._free_bytes)


def check(
    num_elements: int,
    dtype: str,
    *,
    table: int = 0,
    weight: QuantSpec | None = None,
    platform: Platform | None = None,
    device: str = "cpu",
    **options: int | str,
) -> None:
    """Check a matrix of so many elements, in a checkpoint of bfloat16."""
    matrix = LinearSpec(num_elements // 4, 4, dtype, weight=weight)
    uses = {("linear", matrix): 1, ("embedding", EmbeddingSpec(table, 1, dtype)): 1}
    selector = Selector(SLOTS, (), replace(FACTS, device=device))
    selector.uses.update(uses)
    config = EngineConfig(**{"max_model_len": 16, "max_num_seqs": 1, **options})
    model = SimpleNamespace(dtype="bfloat16")
    worker = TorchWorker(config, model, platform or Plain(), selector, None, None)
    worker._check_memory(BuildContext(selector, dtype, dtype, 16, 64))


def test_weights_that_cannot_fit_are_refused_before_they_are_loaded() -> None:
    check(1 << 27, "float32")
    with pytest.raises(MemoryLimitError, match=re.escape("take 2.0 GiB or more, but a test's")):
        check(1 << 29, "float32")
    check(1 << 28, "bfloat16")
    check(1 << 29, "bfloat16", weight=QuantSpec("int4", "tensor"))
    with pytest.raises(MemoryLimitError, match="tensor-parallel-size"):
        check(1 << 32, "bfloat16", weight=QuantSpec("int4", "tensor"))


def test_tables_count_beside_the_matrices_unless_they_stay_in_their_file() -> None:
    check(1 << 28, "bfloat16", table=3 << 27)
    for elsewhere in (
        {"load_format": "dummy"},
        {"device": "meta"},
        {"dtype": "float16"},
    ):
        with pytest.raises(MemoryLimitError, match=re.escape("take 1.2 GiB or more")):
            check(1 << 28, **{"dtype": "bfloat16", **elsewhere}, table=3 << 27)


def test_what_others_took_is_not_there_for_weights() -> None:
    check(1 << 27, "float32", platform=Plain(600 << 20))
    with pytest.raises(MemoryLimitError, match=re.escape("0.5 GiB or more, but a test's device")):
        check(1 << 27, "float32", platform=Plain(500 << 20))
    with pytest.raises(MemoryLimitError):
        check(1 << 29, "float32", platform=Plain(1 << 40))  # whatever it believes
    check(1 << 27, "float32", platform=Plain(0, measures=True))


def test_tables_that_cannot_fit_are_refused_before_they_are_made() -> None:
    check(1 << 20, "float32", max_num_seqs=256, max_model_len=131072)
    with pytest.raises(MemoryLimitError, match="lower --max-num-seqs or --max-model-len"):
        check(1 << 20, "float32", max_num_seqs=4096, max_model_len=131072)


def test_places_of_adapters_take_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig("demo", platform="cpu", enable_lora=True, max_loras=2)
    worker = prepare(config, PluginManager()).torch_worker()
    ctx, _ = worker.build()
    assert ctx.adapters is not None
    taken = ctx.adapters.device.taken
    places = ctx.adapters.device.unwritten_bytes
    assert 0 < places <= taken, "none is written before all is counted"
    needed = worker._selector.matrix_bytes() + places
    monkeypatch.setattr(worker, "_free_bytes", lambda: needed - 1)
    with pytest.raises(MemoryLimitError, match="weights and places of adapters take"):
        worker._check_memory(ctx)
    monkeypatch.setattr(worker, "_free_bytes", lambda: taken - 1)
    with pytest.raises(MemoryLimitError, match="lower --max-loras or --max-lora-rank"):
        worker.build()


def test_memory_that_runs_out_is_a_user_error() -> None:
    with (
        pytest.raises(MemoryLimitError, match=re.escape("too little memory to record graphs (Out")),
        enough_memory("record graphs"),
    ):
        raise torch.OutOfMemoryError("Out of memory. Tried to allocate 2 GiB.")
    with (
        pytest.raises(MemoryLimitError, match=re.escape("(Out. 2 wanted. 1 is free); free some")),
        enough_memory("load weights"),
    ):
        raise torch.OutOfMemoryError("Out. 2 wanted. 1 is free. Otherwise. See elsewhere")
    with pytest.raises(MemoryLimitError, match="allocate"), enough_memory("load weights"):
        torch.empty(1 << 60, dtype=torch.uint8)
    with pytest.raises(MemoryLimitError, match="out of"), enough_memory("load an adapter"):
        raise RuntimeError("CUDA error: out of memory")  # page-locked
    with pytest.raises(RuntimeError, match="another"), enough_memory("record graphs"):
        raise RuntimeError("another")


@pytest.mark.parametrize("device", ["acme", "cuda:0", "cpu:zero"])
def test_a_device_that_pytorch_does_not_know(device: str) -> None:
    with pytest.raises(PlatformError, match=f"platform plain: .* device '{device}' of its facts"):
        check_device("plain", device)


class Panic(BaseException):
    """As libraries raise it that are written in other languages."""


def fail(error: BaseException) -> None:
    raise error


def name_fault(owner: str | None, error: BaseException) -> None:
    fault = EngineError(f"{owner} failed") if owner else None
    selector = SimpleNamespace(fault=lambda error: fault)
    worker = TorchWorker(EngineConfig(), None, Plain(), selector, None, None)
    with worker._guard:
        fail(error)


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(0), Panic("broken")])
def test_whose_operation_fails_is_named(error: BaseException) -> None:
    with pytest.raises(EngineError, match="mine failed") as caught:
        name_fault("mine", error)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [SystemExit(3), Panic(3)])
def test_no_library_ends_the_process(error: BaseException) -> None:
    with pytest.raises(EngineError, match=f"a library raised {type(error).__name__}: 3"):
        name_fault(None, error)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryLimitError("no room")])
def test_what_is_meant_for_the_user_stays_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        name_fault("mine", error)
    assert caught.value is error


def test_faults_of_core_stay_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError):
        name_fault(None, ZeroDivisionError())


def test_memory_is_returned_once_nothing_is_left_in_it() -> None:
    class Held:
        """Recordings, or a runner."""

    alive: list[bool] = []

    class Watching(Plain):
        def release_memory(self) -> None:
            alive.append(any(held() is not None for held in watched))

    worker = TorchWorker(EngineConfig(), None, Watching(), None, None, None)
    worker._ops, worker.execute = Held(), Held()
    watched = [weakref.ref(worker._ops), weakref.ref(worker.execute)]
    worker.close()
    assert alive == [False]


def test_caches_that_cannot_be_had_are_refused_before_memory_is_taken() -> None:
    config = EngineConfig(max_model_len=16, max_num_batched_tokens=16)
    worker = TorchWorker(config, None, Plain(), Selector(SLOTS, (), FACTS), None, None)
    ctx = BuildContext(Selector(SLOTS, (), FACTS), "float32", "float32", 16, 16)
    ctx.cache_layers.append(SimpleNamespace(cache_spec=CacheSpec("unknown", 16, ())))
    with pytest.raises(ConfigError, match=r"layers\[0\] has a cache of kind unknown"):
        worker.layout(ctx)
