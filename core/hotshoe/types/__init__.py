"""Plain value types that cross room borders: sampling parameters, requests, steps, outputs.

Standard library only, so that the scheduler, a front end or a test can import them in
milliseconds. No behavior beyond validation lives here.
"""

from hotshoe.types.arguments import Argument
from hotshoe.types.beams import BeamSearchParams
from hotshoe.types.cache import CacheGroup, CachePart, CacheSpec
from hotshoe.types.grammar import GrammarSpec
from hotshoe.types.layout import CacheLayout, CachePool
from hotshoe.types.outputs import FinishReason, TokenLogprobs, TokenOutput
from hotshoe.types.pooling import Pooling, PoolingParams
from hotshoe.types.prompts import EmbedsPrompt, Prompt, TextPrompt, TokensPrompt
from hotshoe.types.results import CompletionOutput, RequestOutput, RequestTiming
from hotshoe.types.sampling_params import SamplingParams
from hotshoe.types.steps import FinishedStep, NewRow, StepHandle, StepPlan, StepResult

__all__ = [
    "Argument",
    "BeamSearchParams",
    "CacheGroup",
    "CacheLayout",
    "CachePart",
    "CachePool",
    "CacheSpec",
    "CompletionOutput",
    "EmbedsPrompt",
    "FinishReason",
    "FinishedStep",
    "GrammarSpec",
    "NewRow",
    "Pooling",
    "PoolingParams",
    "Prompt",
    "RequestOutput",
    "RequestTiming",
    "SamplingParams",
    "StepHandle",
    "StepPlan",
    "StepResult",
    "TextPrompt",
    "TokenLogprobs",
    "TokenOutput",
    "TokensPrompt",
]
