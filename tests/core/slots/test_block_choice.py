"""What the choice of blocks keeps of a token, and how much a step reads for it."""

from dataclasses import replace

from hotshoe.slots import SLOTS, BlockIndexerSpec

SPEC = BlockIndexerSpec(4, 128, 64, 128, 16, 1, "bfloat16", "bfloat16", 16)


def test_one_key_serves_all_heads():
    assert SPEC.row.channels == 128 and SPEC.row.nbytes == 256
    assert replace(SPEC, num_heads=1).row == SPEC.row
    assert replace(SPEC, kv_dtype="float8_e4m3fn").row.quantized


def test_a_query_is_compared_with_every_key():
    assert SLOTS["block_indexer"].step_bytes(SPEC, 1000) == 256_000
    [result] = SLOTS["block_indexer"].results(SPEC, 3)
    assert (result.shape, result.dtype) == ((3, 4, 16), "int32")
