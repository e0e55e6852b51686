"""The scheduler's settings, checked once.

The engine derives them from its own configuration and from the memory left for the KV cache.
"""

from dataclasses import dataclass, fields
from typing import Literal

from hotshoe.errors import ConfigError
from hotshoe.types.cache import CacheGroup

POLICIES = ("fcfs", "priority")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits and policy of one scheduler.

    Attributes:
        max_num_seqs: Requests running at once; also the number of rows.
        max_num_batched_tokens: Token budget of a step.
        max_model_len: Most tokens of one request, prompt and output together.
        num_blocks: Blocks in the KV cache, or in each pool; () is no cache, so prompts go whole.
        block_size: Tokens per block.
        max_adapters: Different adapters of requests that run at once.
        groups: Cache groups; none is a single one that keeps every token.
        policy: "fcfs" serves in order of arrival; "priority" the lowest priority value first.
        enable_prefix_caching: Share full blocks between requests with equal prefixes.
        max_in_flight_steps: Steps planned but not yet updated; 2 overlaps scheduling with
            execution.
        in_turns: Steps in flight share the requests out, and no step computes a token before the
            one ahead of it is known: for workers that pass steps on from stage to stage.

    Raises:
        ConfigError: A value is out of range.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_blocks: int | tuple[int, ...]
    block_size: int
    policy: Literal["fcfs", "priority"] = "fcfs"
    enable_prefix_caching: bool = True
    max_in_flight_steps: int = 1
    max_adapters: int = 1
    groups: tuple[CacheGroup, ...] = ()
    in_turns: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            counts = value if field.name == "num_blocks" and isinstance(value, tuple) else (value,)
            if field.type in (int, int | tuple[int, ...]) and min(counts, default=1) < 1:
                raise ConfigError(f"{field.name} must be at least 1, not {value}")
        if self.policy not in POLICIES:
            raise ConfigError(f"policy must be one of {', '.join(POLICIES)}, not {self.policy!r}")
        if self.max_model_len < 2:
            raise ConfigError(
                "max_model_len must be at least 2: one prompt token, one output token"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs "
                f"({self.max_num_seqs}), so that some running requests could never advance"
            )

    @property
    def pools(self) -> tuple[int, ...]:
        """Blocks of each pool."""
        return self.num_blocks if isinstance(self.num_blocks, tuple) else (self.num_blocks,)
