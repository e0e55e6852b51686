"""Portable Triton kernels that the GPU platforms share; a library, no plugin.

Each module offers one slot's candidate: `supports(spec, facts)` and an operation class, which
imports its kernels (`hotshoe_triton.kernels`) only when it is built. Platforms name the candidates.
"""
