"""Speculation: proposers of drafts, and what asks them for every running request.

Called by the engine core. Knows no method: these come through hook `hotshoe_proposers`.
"""

from hotshoe.speculation.proposer import (
    DeviceProposer,
    Follower,
    LearningFollower,
    Proposer,
)

__all__ = ["DeviceProposer", "Follower", "LearningFollower", "Proposer"]
