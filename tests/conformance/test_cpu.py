"""The CPU platform conforms."""

import pytest


@pytest.mark.conformance("cpu")
def test_conformance(conformance_check) -> None:
    conformance_check()
