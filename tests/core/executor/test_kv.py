"""What may pass between two caches, and how each refusal names its field and its remedy."""

from dataclasses import replace

import pytest

from hotshoe.errors import KVTransferError, UserError
from hotshoe.executor import KVDescriptor, KVLayer, check_transfer
from hotshoe.slots import PLAIN_LAYOUT, KVLayout

LAYER = KVLayer(2, 64, PLAIN_LAYOUT)
HERE = KVDescriptor("abc", "bfloat16", 16, (LAYER, LAYER))


def test_block_size_and_layout_may_differ() -> None:
    assert check_transfer(HERE, HERE) == ""
    packed = replace(LAYER, layout=KVLayout("packed", "hDtd", "hTdt", 2))
    assert check_transfer(HERE, replace(HERE, block_size=32, layers=(packed, LAYER))) == ""


def test_types_convert_exactly_or_at_a_stated_cost() -> None:
    wide = replace(HERE, dtype="float32")
    assert check_transfer(HERE, wide) == ""
    assert "rounded" in check_transfer(wide, HERE)


@pytest.mark.parametrize(
    ("other", "field", "remedy"),
    [
        (replace(HERE, model="xyz"), "model", "load the same model"),
        (replace(HERE, layers=(LAYER,)), "layers", "load the same model"),
        (
            replace(HERE, layers=(LAYER, replace(LAYER, num_kv_heads=1))),
            r"layers\[1\]\.num_kv_heads",
            "the same tensor_parallel_size",
        ),
        (replace(HERE, layers=(replace(LAYER, head_dim=32), LAYER)), r"layers\[0\]\.head_dim", ""),
        (replace(HERE, dtype="float16"), "dtype", "use kv_cache_dtype bfloat16 on both sides"),
        (replace(HERE, dtype="int8"), "dtype", "use kv_cache_dtype bfloat16 on both sides"),
    ],
)
def test_what_cannot_be_is_refused_by_name(other: KVDescriptor, field: str, remedy: str) -> None:
    with pytest.raises(KVTransferError, match=f"{field} is .* there and .* here; .*{remedy}") as e:
        check_transfer(HERE, other)
    assert e.value.field == field.replace("\\", "")
    assert isinstance(e.value, UserError)
