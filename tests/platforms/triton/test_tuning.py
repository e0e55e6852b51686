"""Default configurations balance the device and fit it; so does everything a tuner tries."""

from dataclasses import replace

import pytest

from hotshoe.platform import DeviceFacts
from hotshoe_triton.device import ARCHS
from hotshoe_triton.tuning import BUCKETS, LIBRARY, LinearConfig, configs, default

SHAPES = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096), (96, 64)]


def shared_bytes(config: LinearConfig, bucket: int, itemsize: int) -> int:
    rows = max(16, bucket)
    return (config.block_n + rows) * config.block_k * itemsize * config.stages


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_defaults_fit(facts: DeviceFacts, arch: str, itemsize: int) -> None:
    device = replace(facts, arch=arch, compute_units=132)
    for n, k in SHAPES:
        for bucket in BUCKETS:
            config = default(bucket, n, k, itemsize, device)
            assert config.kernel == ("gemv" if bucket == 1 and itemsize > 1 else "skinny")
            assert config.split_k * config.block_k <= max(k, config.block_k)
            if config.kernel == "skinny":
                assert shared_bytes(config, bucket, itemsize) <= ARCHS[arch].shared_bytes


@pytest.mark.parametrize(("n", "k"), SHAPES[:5])
def test_defaults_give_every_unit_work(facts: DeviceFacts, n: int, k: int) -> None:
    for bucket in BUCKETS:
        config = default(bucket, n, k, 2, replace(facts, arch="sm_90", compute_units=132))
        programs = -(-n // config.block_n) * config.split_k
        assert programs >= 2 * 132
        assert programs / 132 / -(-programs // 132) > 0.75


@pytest.mark.parametrize("bucket", [1, 16, 64])
def test_a_tuner_tries_what_fits(facts: DeviceFacts, bucket: int) -> None:
    tried = list(configs(bucket, 4096, 4096, 2, facts))
    assert len(set(tried)) == len(tried) > 50
    assert LIBRARY in tried
    limit = ARCHS[facts.arch].shared_bytes
    for config in tried:
        assert config.split_k * config.block_k <= 4096
        if config.kernel == "skinny":
            assert shared_bytes(config, bucket, 2) <= limit
    assert any(config.kernel == "gemv" for config in tried) == (bucket == 1)
