"""Operations that share memory compute as if each had its own, whatever a copy does meanwhile."""

import random
import re

import pytest
import torch

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError, EngineError, MemoryLimitError
from hotshoe.layers.offload import GIB, Offload, Ring, Streamed, offload_of
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, AdaptableMoeOp, LinearSpec, RecordableMoeOp, Selector, renewed

SELECTOR = Selector(SLOTS, (), DeviceFacts("null", "cpu", "processor", "x", 0, 1))
SPEC = LinearSpec(4, 8, "float32")
SPEC_BYTES = 4 * 8 * 4


class Operation:
    """y = w x + b, whose parts are loaded one by one."""

    takes_quantized = True

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}

    def load(self, part: str, values: torch.Tensor) -> None:
        self._held[part] = renewed(self._held.get(part), values.clone())

    def state(self) -> dict[str, torch.Tensor]:
        return dict(self._held)

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._held.values())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._held["w"] @ x + self._held["b"]


class Transfer:
    """Spoils what is copied to, until it is waited for."""

    def __init__(self) -> None:
        self.fetched_bytes = 0

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def fetch(self, copies):
        self.fetched_bytes += sum(source.nbytes for source, _ in copies)
        for _, target in copies:
            target.fill_(torch.nan)

        def arrive() -> None:
            for source, target in copies:
                target.copy_(source)

        return arrive

    def download(self, tensors):
        return list


class Model:
    """Operations of some layers, and what each has to compute."""

    def __init__(self, count: int, rng: random.Random) -> None:
        self.offload, self.transfer = Offload("offload_weights", re.compile("."), 0), Transfer()
        names = [f"model.layers.{i}.mlp.weight" for i in range(count)]
        self.layers = [
            self.offload.take(SELECTOR, "linear", SPEC, [name], Operation()) for name in names
        ]
        self.offload.plan(alone=True)
        self.offload.begin(self.transfer)
        self.values: list[dict[str, torch.Tensor]] = [{} for _ in names]
        self.load(rng, [(i, part) for i in range(count) for part in "wb"])

    def load(self, rng: random.Random, parts: list[tuple[int, str]]) -> None:
        rng.shuffle(parts)
        for i, part in parts:
            shape = (8, 4) if part == "w" else (8,)
            self.values[i][part] = torch.randn(shape)
            self.layers[i].load(part, self.values[i][part])
        self.offload.settle()

    def spoil(self) -> None:
        """Leave on the device what a recording of other layers might."""
        for ring in self.offload.rings:
            for operation in ring.operations:
                for tensor in operation.state().values():
                    tensor.fill_(torch.nan)

    def check(self, order) -> None:
        for i in order:
            x, own = torch.randn(4), self.values[i]
            torch.testing.assert_close(self.layers[i](x), own["w"] @ x + own["b"])


def test_every_layer_computes_with_its_own_weights() -> None:
    for seed in range(6):
        rng = random.Random(seed)
        count = rng.randrange(3, 8)
        model = Model(count, rng)
        for _ in range(3):
            model.spoil()
            model.check(range(count))
        model.spoil()
        model.check(range(rng.randrange(count)))  # a step that ends early
        model.spoil()
        model.check(i for i in range(count) for _ in range(2))  # each twice, as chunks are
        model.check(rng.sample(range(count), count))  # out of turn
        changed = rng.sample([(i, part) for i in range(count) for part in "wb"], 3)
        model.load(rng, changed)
        model.check(range(count))


def test_a_step_copies_each_layer_once() -> None:
    model = Model(5, random.Random(0))
    model.check(range(5))
    once = 5 * (SPEC_BYTES + 8 * 4)
    assert model.transfer.fetched_bytes == once
    model.check([0, *(i for i in range(1, 5) for _ in range(2))])
    assert model.transfer.fetched_bytes == 2 * once


def test_what_is_kept_where() -> None:
    model = Model(4, random.Random(1))
    both = SPEC_BYTES + 8 * 4
    assert [layer.nbytes() for layer in model.layers] == [both, both, 0, 0]
    assert [len(layer.state()) for layer in model.layers] == [4, 4, 2, 2]
    assert torch.equal(model.layers[3].state()["w"], model.values[3]["w"])
    assert model.layers[2].takes_quantized
    assert model.offload.saved_bytes == 2 * SPEC_BYTES
    said = model.offload.report()["offloaded weights"]
    assert re.match(
        r"0\.000 GiB of 4 operations in host memory; each step copies them, [\d.]+ ms", said
    )
    assert "of 4 operations (offload_weights), which save 0.000 GiB" in model.offload.note()


def taken(offload: Offload, count: int, operation=Operation) -> list[object]:
    names = [f"layers.{i}.{kind}" for i in range(count) for kind in ("up", "down")]
    return [offload.take(SELECTOR, "linear", SPEC, [name], operation()) for name in names]


def test_only_what_is_meant_is_taken() -> None:
    offload = Offload("offload_weights", re.compile(r"layers\.[1-4]\.up"), 0)
    found = taken(offload, 6)
    assert [isinstance(one, Streamed) for one in found[::2]] == [False, *[True] * 4, False]
    assert not any(isinstance(one, Streamed) for one in found[1::2])
    head = Operation()
    assert Offload("o", None, 1).take(SELECTOR, "linear", SPEC, ["lm_head.weight"], head) is head
    assert offload.take(SELECTOR, "gated_mlp", SPEC, ["layers.1.up"], None) is None


def test_by_size_layers_are_spread_and_suffice() -> None:
    for wanted in range(1, 5):
        offload = Offload("cpu_offload_gb", None, 2 * wanted * SPEC_BYTES)
        layers = taken(offload, 6)
        offload.plan(alone=True)
        assert offload.saved_bytes == 2 * wanted * SPEC_BYTES
        assert sum(one.ring is not None for one in layers) == 2 * (wanted + 2)
    offload = Offload("cpu_offload_gb", None, 9 * SPEC_BYTES)
    taken(offload, 6)
    with pytest.raises(ConfigError, match=r"cpu_offload_gb .*: at most 0\.000 GiB"):
        offload.plan(alone=True)


class Experts(Operation):
    """What adapters may change; the layer sees by its class that it has `adapted`."""

    load_gate_up = load_down = Operation.load

    def adapted(self, x, logits, correction, placement, between):
        return self(x)


def test_adapted_experts_compute_with_their_own_weights() -> None:
    offload = Offload("offload_weights", re.compile("."), 0)
    layers = taken(offload, 4, Experts)
    offload.plan(alone=True)
    offload.begin(Transfer())
    for i, layer in enumerate(layers):
        assert isinstance(layer, AdaptableMoeOp) and hasattr(type(layer), "adapted")
        assert isinstance(layer, RecordableMoeOp) and not layer.recordable, "as the reference"
        layer.load_gate_up("w", torch.full((1, 1), i + 1.0))
        layer.load_down("b", torch.zeros(1))
    offload.settle()
    found = [layer.adapted(torch.ones(1), None, None, None, None).item() for layer in layers]
    assert found == list(range(1, 9))
    assert not isinstance(taken(offload, 1, Operation)[0], AdaptableMoeOp)


def test_what_would_save_nothing_is_refused_unless_another_stage_may_save() -> None:
    offload = Offload("offload_weights", re.compile(r"\.[12]\."), 0)
    kept = taken(offload, 4)
    with pytest.raises(ConfigError, match="no three layers have weights of one kind"):
        offload.plan(alone=True)
    offload.plan(alone=False)
    offload.check(saves_nothing=False)
    assert offload.report() == {"offloaded weights": "none of this stage"}
    with pytest.raises(ConfigError, match="no three layers have weights of one kind"):
        offload.check(saves_nothing=True)
    kept[2].load("w", torch.ones(8, 4))
    assert kept[2].nbytes() == SPEC_BYTES and set(kept[2].state()) == {"w"}


def test_an_operation_has_to_tell_its_state() -> None:
    class Silent:
        def load(self, tensors) -> None:
            pass

    offload = Offload("offload_weights", re.compile("."), 0)
    assert taken(offload, 3, Silent)[0].state is None, "and its layer knows it"
    offload.plan(alone=True)
    with pytest.raises(
        ConfigError, match=r"slot linear for layers\.\*\.up does not tell its state"
    ):
        offload.begin(Transfer())


def test_forms_have_to_stay() -> None:
    model = Model(3, random.Random(0))
    ring = model.offload.rings[0]
    assert isinstance(ring, Ring)
    model.layers[2].load("w", model.values[2]["w"])
    ring.operations[0]._held["w"] = torch.ones(2)
    with pytest.raises(EngineError, match="w of layer 2 changed its form"):
        model.offload.settle()


def test_a_host_without_room() -> None:
    class Full(Transfer):
        def host_buffer(self, nbytes: int) -> torch.Tensor:
            raise RuntimeError("no more page-locked memory")

    offload = Offload("cpu_offload_gb", None, SPEC_BYTES)
    layers = taken(offload, 3)
    offload.plan(alone=True)
    offload.begin(Full())
    layers[0].load("w", torch.ones(8, 4))
    with pytest.raises(MemoryLimitError, match=r"page-locked memory\); mean fewer layers"):
        offload.settle()


def test_who_may_ask_for_it() -> None:
    assert offload_of(EngineConfig(), "cpu") is None
    with pytest.raises(ConfigError, match="cpu_offload_gb: device cpu computes in host memory"):
        offload_of(EngineConfig(cpu_offload_gb=1), "cpu")
    ranks = {"tensor_parallel_size": 2, "enable_expert_parallel": True, "enable_eplb": True}
    with pytest.raises(ConfigError, match="offload_weights and enable_eplb exclude each other"):
        offload_of(EngineConfig(offload_weights="a", **ranks), "other")
    made = offload_of(EngineConfig(cpu_offload_gb=0.5), "meta")
    assert made is not None and made._wanted_bytes == GIB // 2
