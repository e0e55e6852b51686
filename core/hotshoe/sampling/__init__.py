"""Sampling: everything between the model's logits and the next tokens. Used by the runner."""

from hotshoe.sampling.logprobs import LogprobTensors, compute_logprobs
from hotshoe.sampling.recorded import RecordedSampling
from hotshoe.sampling.sampler import SampledBatch, Sampler

__all__ = ["LogprobTensors", "RecordedSampling", "SampledBatch", "Sampler", "compute_logprobs"]
