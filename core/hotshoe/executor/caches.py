"""Which caches of layers groups can be made for. Asked before memory is taken; free of torch."""

from collections.abc import Sequence

from hotshoe.errors import ConfigError
from hotshoe.kv.kinds import KINDS
from hotshoe.types.cache import CacheSpec


def check_caches(specs: Sequence[CacheSpec], block_size: int) -> None:
    """Refuse layers' caches that no group can be made for.

    Args:
        specs: Of every layer with a cache, in the order of layers.
        block_size: Tokens of a block, in every group.

    Raises:
        ConfigError: A kind is not served, or blocks of this size do not fit a layer.
    """
    for number, spec in enumerate(specs):
        if spec.kind not in KINDS:
            raise ConfigError(
                f"layers[{number}] has a cache of kind {spec.kind}, which is not served "
                f"(served: {', '.join(KINDS)}); use a model without such layers"
            )
        if spec.block_tokens != block_size:
            raise ConfigError(
                f"block_size {block_size} does not fit layers[{number}], whose cache of kind "
                f"{spec.kind} has blocks of {spec.block_tokens} tokens; use --block-size "
                f"{spec.block_tokens}"
            )
        if block_size % spec.tokens_per_entry:
            fitting = -(-block_size // spec.tokens_per_entry) * spec.tokens_per_entry
            raise ConfigError(
                f"block_size {block_size} does not fit layers[{number}], whose cache has one entry "
                f"for {spec.tokens_per_entry} tokens; use --block-size {fitting}"
            )
