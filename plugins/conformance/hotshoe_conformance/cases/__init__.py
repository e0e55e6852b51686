"""The cases of every slot, one module each."""

from hotshoe_conformance.cases import (
    activation,
    attention,
    communicator,
    embedding,
    graph,
    linear,
    mlp,
    norm,
    rotary,
    sample,
    transfer,
)
from hotshoe_conformance.cases.base import Suite

SUITES: dict[str, Suite] = {
    suite.slot: suite
    for suite in (
        attention.SUITE,
        rotary.SUITE,
        linear.SUITE,
        norm.SUITE,
        norm.ADD_SUITE,
        activation.SUITE,
        mlp.SUITE,
        embedding.SUITE,
        sample.SUITE,
        transfer.SUITE,
        graph.SUITE,
        communicator.SUITE,
    )
}
