"""The conformance kit over the simulated accelerator."""

import pytest


@pytest.mark.conformance("sim")
def test_conformance(conformance_check) -> None:
    conformance_check()
