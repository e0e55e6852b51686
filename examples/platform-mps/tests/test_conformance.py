"""The conformance kit over the platform, played by a processor."""

import pytest


@pytest.mark.conformance("mps-played")
def test_conformance(conformance_check) -> None:
    conformance_check()
