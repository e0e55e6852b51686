"""Sampling: everything between the model's logits and the next tokens. Used by the runner."""

from hotshoe.sampling.logprobs import prompt_logprobs
from hotshoe.sampling.sampler import SampledBatch, Sampler

__all__ = ["SampledBatch", "Sampler", "prompt_logprobs"]
