"""Layers of Gemma 4: the scale at their end, which updates replace in place."""

import torch


def test_the_scale_is_replaced_in_place(build_family):
    ctx = build_family("Gemma4", global_head_dim=16, num_hidden_layers=1)
    name = "model.layers.0.layer_scalar"
    ctx.weights.feed(name, torch.tensor([2.5]))
    [place] = ctx.weights.where(name)
    held = place.holder.state()[place.part]
    assert held.tolist() == [2.5]
    ctx.weights.feed(name, torch.tensor([0.5]))
    assert held.tolist() == [0.5]
