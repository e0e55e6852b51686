"""Further formats of reasoning between markers: samples, in every two pieces."""

from hotshoe.lazy import resolve_lazy
from hotshoe_parsers.plugin import REASONING_FORMATS


def test_samples(check_sample, sample) -> None:
    check_sample(resolve_lazy(REASONING_FORMATS[sample["format"]]), sample)
