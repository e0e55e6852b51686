"""Streams of Gemma 3n: what enters has one magnitude, and a mean of all leaves."""

import torch

SMALL = {
    "head_dim": 16,
    "hidden_size": 32,
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": 64,
    "num_hidden_layers": 2,
    "num_kv_shared_layers": 0,
    "layer_types": ["full_attention"] * 2,
}


def test_streams_have_the_magnitude_of_the_embeddings(variants, checkpoints, stepper_class):
    variant = variants["gemma3n"]
    model = stepper_class(checkpoints.get(variant).path, variant.max_model_len).model
    hidden = torch.randn(5, 64) * torch.tensor([0.1, 1.0, 3.0, 10.0, 100.0])[:, None]
    streams = model.enter(hidden)
    assert streams.shape == (4, 5, 64)
    assert torch.equal(streams[0], hidden)
    squares = streams.square().mean(-1)
    torch.testing.assert_close(squares, squares[:1].expand(4, 5), rtol=1e-4, atol=0)
    left = model.leave(torch.stack([hidden] + 3 * [torch.zeros(5, 64)]))
    torch.testing.assert_close(left, hidden / 4, rtol=1e-6, atol=1e-6)


def test_the_small_matrices_are_never_quantized(build_family):
    ctx = build_family("Gemma3n", **SMALL)
    linear = [spec for slot, spec in ctx.selector.decisions if slot == "linear"]
    small = [spec for spec in linear if spec.in_features == 4 and spec.out_dtype == "float32"]
    assert {spec.out_features for spec in small} == {4, 16}
