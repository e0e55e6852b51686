"""Uniform numbers: known stream values, range, independence of seeds and positions."""

import numpy as np

from hotshoe.sampling.uniform import mix, uniforms


def test_mix_agrees_with_published_splitmix64_stream():
    states = np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert mix(states).tolist() == expected


def test_values_are_uniform_for_near_seeds_and_near_positions():
    seeds, positions = np.meshgrid(np.arange(300, dtype=np.uint64), np.arange(300), indexing="ij")
    u = uniforms(seeds.ravel(), positions.ravel())
    assert u.min() >= 0 and u.max() < 1
    assert len(np.unique(u)) == u.size
    counts, _ = np.histogram(u, bins=64, range=(0, 1))
    expected = u.size / 64
    assert np.sum((counts - expected) ** 2 / expected) < 130  # 63 degrees, p below 1e-6
    grid = u.reshape(300, 300)
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.02


def test_a_value_depends_on_its_own_seed_and_position_only():
    seeds = np.array([7, 2**63 - 1, 0], dtype=np.uint64)
    positions = np.array([5, 0, 2**24])
    together = uniforms(seeds, positions)
    for i in range(3):
        assert uniforms(seeds[i : i + 1], positions[i : i + 1])[0] == together[i]
