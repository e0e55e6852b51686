"""Whose fault a failed sequence is."""

import pytest


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        ("logits are not finite", 500, "generation_failed"),
        ("grammar: llguidance cannot compile this regex", 400, "invalid_value"),
    ],
)
def test_a_failed_sequence(open_http, engine, failure: str, status: int, code: str) -> None:
    http = open_http()
    engine.fail_after, engine.failure = 0, failure
    answer = http.post("/v1/completions", prompt="Say")
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == code
    assert failure in error["message"]
