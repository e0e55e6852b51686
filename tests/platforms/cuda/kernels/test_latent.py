"""What the kernel of latent attention takes is what its candidate offers it, and fits an sm_90."""

from hotshoe_cuda import latent
from hotshoe_cuda.kernels import latent as kernels
from hotshoe_triton.device import ARCHS


def test_the_candidate_offers_what_the_kernel_takes() -> None:
    assert kernels.HEADS.value == latent.HEADS
    assert kernels.ROWS.value == latent.ROWS
    assert (2 * kernels.HALF.value, kernels.TURNED.value) == (latent.LATENT, latent.TURNED)
    assert (kernels.BOX.value, kernels.PANEL.value) == (latent.BOX, latent.PANEL)


def test_two_tiles_and_the_queries_fit_shared_memory() -> None:
    row = 2 * (latent.LATENT + latent.TURNED)
    rows = kernels.HEADS.value + 2 * kernels.ROWS.value
    tops_and_sums = 4 * (2 + 4) * kernels.HEADS.value
    assert rows * row + tops_and_sums < ARCHS["sm_90"].shared_bytes - 4096


def test_weights_fit_the_place_of_rotated_keys() -> None:
    assert kernels.HEADS.value * kernels.ROWS.value == kernels.ROWS.value * kernels.TURNED.value
