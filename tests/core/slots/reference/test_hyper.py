"""Residual streams of the reference: how they mix, and that gates are those of the next call."""

import torch

from hotshoe.slots import HyperConnectionSpec
from hotshoe.slots.reference.hyper import HyperConnection, doubly_stochastic

SPEC = HyperConnectionSpec(3, 8, 20, 1e-6, 1e-6, "float32")


def test_rows_and_columns_of_mixing_matrices_sum_to_one() -> None:
    made = doubly_stochastic(torch.randn(50, 4, 4), 20, 1e-6)
    for axis in (1, 2):
        torch.testing.assert_close(made.sum(axis), torch.ones(50, 4), rtol=1e-3, atol=1e-3)


def test_a_block_joins_every_stream_and_streams_mix() -> None:
    streams, out = torch.randn(5, 3, 8), torch.randn(5, 8)
    post, mix = torch.rand(5, 3), torch.rand(5, 3, 3)
    gates = torch.cat((post, mix.flatten(1)), 1)
    found = HyperConnection(SPEC, None).joined(streams, out, gates)
    for j in range(3):
        mixed = sum(mix[:, i, j, None] * streams[:, i] for i in range(3))
        torch.testing.assert_close(found[:, j], mixed + post[:, j, None] * out)


def test_gates_join_the_block_that_follows() -> None:
    op, streams = HyperConnection(SPEC, None), torch.randn(5, 3, 8)
    weights = torch.randn(SPEC.outputs, 24), torch.randn(SPEC.outputs), torch.ones(3)
    same, taken, gates = op(streams, None, *weights)
    assert same is streams and taken.shape == (5, 8) and gates.shape == (5, SPEC.gates)
    mix = gates[:, 3:].view(5, 3, 3)
    torch.testing.assert_close(mix.sum(1), torch.ones(5, 3), rtol=1e-4, atol=1e-4)
    joined, *_ = op(streams, (taken, gates), *weights)
    wanted = mix.mT @ streams + gates[:, :3, None] * taken[:, None]
    torch.testing.assert_close(joined, wanted)
