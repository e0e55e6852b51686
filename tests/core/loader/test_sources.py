"""Sources: files together, names and tensors, and new weights in place, all of them or none."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext, Embedding, Linear, Matrix, RMSNorm
from hotshoe.loader import update_weights
from hotshoe.loader.checkpoint import feed
from hotshoe.loader.sources import Stream, source_of
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
SHAPES = {"e.weight": (6, 4), "q.weight": (4, 4), "k.weight": (2, 4), "n.weight": (4,)}


class Layers:
    """An embedding, a stacked matrix and a norm."""

    def __init__(self, **weights: torch.Tensor) -> None:
        self.ctx = ctx = BuildContext(
            Selector(SLOTS, [], FACTS), "float32", "float32", block_size=4, max_model_len=32
        )
        self.embedding = Embedding(ctx, "e", 6, 4)
        self.linear = Linear(ctx, Matrix(ctx, [("q", 4), ("k", 2)], 4))
        self.norm = RMSNorm(ctx, "n", 4, 1e-6)
        ctx.weights.ignore([r"unused$"])
        feed(ctx.weights, Stream(weights.items()))
        ctx.weights.check_complete()

    def __call__(self) -> torch.Tensor:
        return self.linear(self.norm(self.embedding(torch.arange(6, dtype=torch.int32))))

    def addresses(self) -> list[int]:
        held = (holder.state() for holder in self.ctx.weights.holders() if holder.state)
        return [tensor.data_ptr() for state in held for tensor in state.values()]


def draw() -> dict[str, torch.Tensor]:
    return {name: torch.randn(shape) for name, shape in SHAPES.items()}


def test_new_values_lie_where_the_old_ones_lay() -> None:
    old, new = draw(), draw()
    layers, fresh = Layers(**old), Layers(**new)
    before = layers.addresses()
    update_weights(layers.ctx.weights, Stream(new.items()))
    assert torch.equal(layers(), fresh()) and layers.addresses() == before


def test_nothing_of_the_sender_is_kept() -> None:
    new = draw()
    layers = Layers(**draw())
    update_weights(layers.ctx.weights, Stream(new.items()))
    kept = layers().clone()
    for tensor in new.values():
        tensor.fill_(torch.nan)
    assert torch.equal(layers(), kept)


def test_some_weights_may_come_alone() -> None:
    old, new = draw(), draw()
    layers = Layers(**old)
    some = {name: new[name] for name in ("n.weight", "k.weight", "q.weight")}
    update_weights(layers.ctx.weights, Stream(some.items()))
    assert torch.equal(layers(), Layers(**(old | some))())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"z.weight": torch.ones(1)}, "holds z.weight, which"),
        ({"k.weight": torch.ones(4, 2)}, r"k.weight has shape \[4, 2\]"),
        ({"k.weight": torch.ones(2, 4, dtype=torch.int8)}, "k.weight is of type int8"),
        ({"k.weight": torch.ones(2, 4).to(torch.float8_e4m3fn)}, "k.weight is of type float8"),
        ({"k.weight": None}, "holds q.weight but not k.weight"),
    ],
)
def test_one_wrong_tensor_and_nothing_is_written(wrong: dict, said: str) -> None:
    layers = Layers(**draw())
    kept = layers().clone()
    update = {name: t for name, t in (draw() | wrong).items() if t is not None}
    with pytest.raises(CheckpointError, match=said):
        update_weights(layers.ctx.weights, Stream(update.items()))
    assert torch.equal(layers(), kept)


def test_an_update_of_nothing_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no tensor that this model uses"):
        update_weights(Layers(**draw()).ctx.weights, Stream([("unused", torch.ones(1))]))


def test_an_operation_that_does_not_tell_its_state_is_named() -> None:
    layers = Layers(**draw())
    place = layers.ctx.weights.where("n.weight")[0]
    object.__setattr__(place.holder, "state", None)
    with pytest.raises(CheckpointError, match=r"n\.weight cannot be replaced in place"):
        update_weights(layers.ctx.weights, Stream(draw().items()))


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([("w", 1)], "str and int"),
        ([(1, torch.ones(1))], "int and Tensor"),
        ([torch.ones(3)], "pairs of a name and a tensor"),
        (7, "pairs of a name and a tensor"),
        ([("w", torch.ones(1))] * 2, "w is given twice"),
    ],
)
def test_what_is_no_stream(pairs: object, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        source_of(pairs)  # type: ignore[arg-type]


def test_a_directory_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(2)}, file)
    for weights in (tmp_path, str(file)):
        source = source_of(weights)
        assert list(source.names()) == ["w"] and source.tensor("w").tolist() == [1, 1]
    for missing in (tmp_path / "none", ""):
        with pytest.raises(CheckpointError):
            source_of(missing)


def test_two_files_with_the_same_name(tmp_path: Path) -> None:
    for name in "ab":
        save_file({"w": torch.ones(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match=r"b.safetensors holds w once more"):
        source_of(tmp_path)


def test_the_table_says_where_a_tensor_went() -> None:
    layers = Layers(**draw())
    [place] = layers.ctx.weights.where("k.weight")
    assert (place.holder.slot, place.holder.candidate) == ("linear", "reference")
    assert (place.part, place.rows, place.needs) == ("weight", (4, 6), ("q.weight",))
    held = place.holder.state()
    assert held["weight"].shape == (6, 4) and place.holder.form == "float32"
    assert layers.ctx.weights.where("z") == () and len(layers.ctx.weights.holders()) == 3
