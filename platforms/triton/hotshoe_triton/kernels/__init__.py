"""The kernels themselves; importing one of these modules imports Triton."""
