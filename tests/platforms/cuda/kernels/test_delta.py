"""What the kernel of the gated delta rule takes is what its candidate offers, and fits an sm_90."""

from hotshoe_cuda import gated_delta
from hotshoe_cuda.kernels import delta
from hotshoe_triton.device import ARCHS


def test_the_candidate_offers_what_the_kernel_takes() -> None:
    sizes = (delta.TOKENS.value, delta.KEYS.value, delta.ROWS.value)
    assert sizes == (gated_delta.TOKENS, gated_delta.KEYS, gated_delta.ROWS)


def test_the_ring_fits_shared_memory() -> None:
    keys, tokens, rows = gated_delta.KEYS, gated_delta.TOKENS, gated_delta.ROWS
    # Of k and what makes new values there are two parts; q and scores have one; v is float32.
    of_token = 2 * (3 * keys + 3 * tokens) + 4 * rows + 2 * 4
    assert delta.STAGES.value * tokens * of_token < ARCHS["sm_90"].shared_bytes - 4096
