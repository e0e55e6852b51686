"""Logits of relative positions."""

import torch

from hotshoe.slots.reference.relative import relative_logits


def test_distances_behind_the_last_profile_add_nothing():
    states, profiles = torch.randn(2, 1, 3), torch.randn(3, 2)
    found = relative_logits(states, profiles, 4)[0, 1]
    near = states[1, 0] @ profiles
    torch.testing.assert_close(found[1:], torch.stack((torch.tensor(0.0), near[1], near[0])))
