"""Layers of Qwen4-Exp, on a text with several ends, which random ones seldom have."""

import torch


def test_ends_hide_what_lies_before(variants, checkpoints, stepper_class):
    checkpoint = checkpoints.get(variants["qwen4-exp"])
    text = [7, 30, 7, 7, 31, 32, 33, 7, 30, 31, 32]
    stepper = stepper_class(checkpoint.path, 64)
    ours = torch.stack([stepper.step({0: [token]})[0].flatten() for token in text])
    wanted = checkpoint.logits(text)
    sound = checkpoint.unstable(text)
    assert sound > 0
    off = (ours - wanted).abs().amax(-1) / wanted.abs().amax(-1)
    assert (off[:sound] < 1e-4).all()
