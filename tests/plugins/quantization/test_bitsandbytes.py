"""Checkpoints of bitsandbytes: their tensors put together, and files that cannot be."""

import json
from collections.abc import Callable

import pytest
import torch
from tests.plugins.quantization.writers import looked_up, row_maxima
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.loader.sources import Stored, Stream
from hotshoe.slots import QuantSpec
from hotshoe_quantization import bitsandbytes

FOUR = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
EIGHT = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}
STATE = "a.weight.quant_state.bitsandbytes__nf4"
Tensors = dict[str, Tensor]


def written(nested: int | None = None) -> tuple[Tensors, Tensor]:
    parts, dense = looked_up("nf4", 32, nested)(torch.randn(6, 80))
    return {f"a.{name}": tensor for name, tensor in parts.items()}, dense


def decoded(tensors: Tensors, config: dict = FOUR) -> Tensors:
    stored = bitsandbytes.read(config)
    source = stored.decode(Stream(tensors.items()))
    found = {name: source.tensor(name) for name in source.names()}
    for name in found:
        source.taken(name)
    return found


@pytest.mark.parametrize("nested", [None, 4, 256])
@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.bfloat16])
def test_four_bits_become_plain_numbers(nested: int | None, kind: torch.dtype) -> None:
    """Whatever the type that the bytes were stored in, and where blocks cross rows."""
    tensors, dense = written(nested)
    tensors["a.weight"] = tensors["a.weight"].flatten().view(kind)
    found = decoded({"norm.weight": torch.ones(3), **tensors})
    assert list(found) == ["norm.weight", "a.weight"]
    torch.testing.assert_close(found["a.weight"], dense, rtol=1e-6, atol=1e-6)


def test_the_last_block_may_be_short() -> None:
    parts, dense = looked_up("fp4", 64)(torch.randn(3, 50))
    config = FOUR | {"bnb_4bit_quant_type": "fp4"}
    found = decoded({f"a.{name}": tensor for name, tensor in parts.items()}, config)
    torch.testing.assert_close(found["a.weight"], dense, rtol=1e-6, atol=1e-6)


def test_rows_of_integers_keep_their_form() -> None:
    parts, dense = row_maxima(torch.randn(8, 16))
    stored = bitsandbytes.read(EIGHT)
    storage = stored.storage("model.layers.0.mlp.up_proj", (8, 16))
    assert storage is not None
    assert (storage.weight, storage.activation) == (QuantSpec("int8", "channel"), None)
    assert stored.storage("lm_head", (8, 16)) is None
    found = decoded({f"a.{name}": tensor for name, tensor in parts.items()}, EIGHT)
    assert list(found) == ["a.weight", "a.SCB"]
    made = stored.canonical("a", {name: [found[f"a.{name}"][:4]] for name in ("weight", "SCB")})
    [weight], [scale] = made["weight"], made["weight_scale"]
    torch.testing.assert_close(weight.float() * scale[:, None], dense[:4], rtol=1e-6, atol=0)


def test_sizes_are_told_of_all_parts() -> None:
    class Told(Stream):
        def stored(self, name: str) -> Stored:
            tensor = self.tensor(name)
            return Stored(str(tensor.dtype).removeprefix("torch."), tensor.nbytes)

    tensors, _ = written()
    whole = sum(tensor.nbytes for tensor in tensors.values())
    source = bitsandbytes.read(FOUR).decode(Told(tensors.items()))
    assert source.stored("a.weight") == ("nf4", whole)
    parts, _ = row_maxima(torch.randn(4, 4))
    rows = bitsandbytes.read(EIGHT).decode(Told(parts.items()))
    assert rows.stored("weight") == ("int8", 16)


def state(**changes: object) -> Callable[[Tensors], None]:
    """Change what a matrix's description says."""

    def change(tensors: Tensors) -> None:
        values = json.loads(bytes(tensors[STATE].tolist())) | changes
        tensors[STATE] = torch.tensor(list(json.dumps(values).encode())).byte()

    return change


def put(name: str, tensor: Tensor | None) -> Callable[[Tensors], None]:
    """Replace a tensor, or leave it out."""

    def change(tensors: Tensors) -> None:
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor

    return change


NAN = torch.full((15,), torch.nan)
#: Of plain scales, and of those with scales of their own.
BAD = [
    (None, put("a.weight", None), r"lacks a\.weight, but has its scales"),
    (None, put("a.weight.absmax", None), r"lacks a\.weight\.absmax"),
    (
        None,
        put("a.weight.quant_map", torch.ones(16).long()),
        "quant_map is of type torch.int64, no",
    ),
    (
        4,
        put("a.weight.nested_quant_map", torch.ones(256).int()),
        "nested_quant_map is of type torch",
    ),
    (None, put("a.weight.quant_map", None), r"lacks a\.weight\.quant_map"),
    (None, put(STATE, None), r"lacks a\.weight\.quant_state\.bitsandbytes__nf4"),
    (None, put(STATE, torch.zeros(5000).byte()), "bytes of a short JSON object"),
    (None, put(STATE, torch.zeros(50)), "bytes of a short JSON object"),
    (None, put(STATE, torch.zeros(50).byte()), "is not JSON"),
    (None, put(STATE, torch.tensor(list(b"[1]")).byte()), "must be an object"),
    (None, put(STATE, torch.tensor(list(b"\xff\xfe{")).byte()), "is not JSON"),
    (None, put(STATE, torch.tensor(list(b"[" * 4000)).byte()), "is not JSON"),
    (None, put("a.weight.absmax", NAN), r"a\.weight\.absmax, or .* holds NaN"),
    (None, put("a.weight.absmax", torch.ones(14)), "has 14 elements, but 15 belong"),
    (None, put("a.weight.absmax", torch.ones(15).byte()), "is quantized itself"),
    (None, put("a.weight.quant_map", torch.ones(17)), "has 17 elements, but 16 belong"),
    (None, put("a.weight.quant_map", torch.full((16,), torch.inf)), "holds NaN or infinity"),
    (None, put("a.weight", torch.zeros(239, 1).byte()), "has 239 elements, but 240 belong"),
    (None, state(shape=[6, 81]), "has 240 elements, but 243 belong"),
    (None, state(shape=[2**40, 2**40]), "240 elements, but"),
    (None, state(shape=[6]), "shape must be two sizes"),
    (None, state(shape=[6, True]), "shape must be two sizes"),
    (None, state(blocksize=31), "blocksize is read as 32 or 64"),
    (None, state(quant_type="fp4"), "quant_type is read as nf4, not 'fp4'"),
    (None, state(nested_blocksize=4), "is quantized itself"),
    (4, put("a.weight.nested_absmax", None), r"lacks a\.weight\.nested_absmax"),
    (4, put("a.weight.nested_quant_map", None), r"lacks a\.weight\.nested_quant_map"),
    (4, put("a.weight.nested_absmax", torch.ones(5)), "has 5 elements, but 4 belong"),
    (4, put("a.weight.nested_absmax", NAN[:4]), "holds NaN"),
    (4, put("a.weight.nested_quant_map", torch.ones(16)), "has 16 elements, but 256 belong"),
    (4, put("a.weight.absmax", torch.ones(15)), "says that scales are plain"),
    (4, state(nested_blocksize=0), "nested_blocksize must be a positive integer"),
    (4, state(nested_blocksize=None), "says that scales are plain"),
    (4, state(nested_offset="0"), "nested_offset must be a finite number"),
    (4, state(nested_offset=float("nan")), "nested_offset must be a finite number"),
]


@pytest.mark.parametrize(("nested", "change", "words"), BAD)
def test_parts_that_are_no_matrix(
    nested: int | None, change: Callable[[Tensors], None], words: str
) -> None:
    tensors, _ = written(nested)
    change(tensors)
    with pytest.raises(CheckpointError, match=words):
        decoded(tensors)


def test_a_matrix_without_parts_is_packed() -> None:
    with pytest.raises(CheckpointError, match=r"a\.weight is packed, but .* lacks .*nf4"):
        decoded({"a.weight": torch.zeros(240, 1).byte()})


def test_the_other_kind_is_told() -> None:
    with pytest.raises(CheckpointError, match=r"stored as nf4, but .* says .* fp4"):
        decoded(written()[0], FOUR | {"bnb_4bit_quant_type": "fp4"})


def test_orders_of_older_files() -> None:
    with pytest.raises(CheckpointError, match=r"weight_format says .* export the checkpoint again"):
        decoded({"a.weight_format": torch.tensor(2, dtype=torch.uint8)}, EIGHT)


def test_scales_of_rows_are_numbers() -> None:
    stored = bitsandbytes.read(EIGHT)
    pieces = {"weight": [torch.ones(2, 2).char()], "SCB": [torch.tensor([1.0, torch.nan])]}
    with pytest.raises(CheckpointError, match=r"a\.SCB, or .* holds NaN"):
        stored.canonical("a", pieces)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "load_in_4bit and load_in_8bit must be"),
        (FOUR | {"load_in_8bit": True}, "load_in_4bit and load_in_8bit must be"),
        (FOUR | {"load_in_4bit": "yes"}, "load_in_4bit is read as True or False, not 'yes'"),
        (FOUR | {"bnb_4bit_quant_type": "nf8"}, "bnb_4bit_quant_type is read as nf4 or fp4"),
        (EIGHT | {"llm_int8_skip_modules": "lm_head"}, "must be a list of names"),
    ],
)
def test_configurations(config: dict, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        bitsandbytes.read(config)
