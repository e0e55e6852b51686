"""How evenly ranks compute tokens of experts, as whoever watches an engine sees it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertCounts:
    """What has been done so that ranks compute equally many tokens of experts.

    Attributes:
        num_rearrangements: Total of times that experts of a layer changed places.
        num_moved: Total of experts that a rank got.
        imbalance: A rank's largest share of a layer's tokens over the mean share, at the last look
            at each layer, as a mean over layers; 0 before the first look.
    """

    num_rearrangements: int = 0
    num_moved: int = 0
    imbalance: float = 0.0
