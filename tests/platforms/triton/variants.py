"""Prints as JSON how often each kernel is compiled for steps of 1, 15 and 16 requests.

A program of its own, since the tests' process may interpret kernels.
"""

import json
from collections import defaultdict
from dataclasses import replace

from hotshoe_triton import matrix, sparse_cases
from hotshoe_triton.attention_cases import TREES, branch
from hotshoe_triton.cases import attend_latents
from hotshoe_triton.delta_cases import KIMI, NEXT, recur
from hotshoe_triton.device import ARCHS
from hotshoe_triton.state_cases import SPACES, scan

LATENT = replace(sparse_cases.DEEPSEEK, num_heads=16, latent_dim=64, rope_dim=32)
INDEX = replace(sparse_cases.INDEX, num_heads=16, head_dim=64, rope_dim=32)
REQUESTS = (1, 15, 16)


def main() -> None:
    found = defaultdict(set)
    for reqs in REQUESTS:
        calls = (
            attend_latents(LATENT, 1, reqs),
            attend_latents(LATENT, 3, reqs),
            sparse_cases.attend_chosen(sparse_cases.SparseMlaSpec(LATENT, 64), 1, reqs),
            sparse_cases.index(INDEX, 1, reqs),
            *(recur(spec, 33, reqs) for spec in (NEXT, KIMI)),
            scan(SPACES["128x64x128"], 33, reqs),
            sparse_cases.make_entries(sparse_cases.MADE, 1, reqs),
            branch(TREES["4/2x8"], 33, reqs),
        )
        for place, call in enumerate(calls):
            with matrix.Compiling(ARCHS["sm_90"]) as compiling:
                assert call(matrix.facts_of("sm_90"))
            for kernel, compiled in compiling.compiled:
                found[f"{kernel} {place}"].add(compiled.hash)
    print(json.dumps({kernel: len(hashes) for kernel, hashes in found.items()}))


if __name__ == "__main__":
    main()
