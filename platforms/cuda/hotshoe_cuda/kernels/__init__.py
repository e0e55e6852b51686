"""Kernels that NVIDIA's GPUs alone run."""
