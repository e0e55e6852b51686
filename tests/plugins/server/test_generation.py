"""Whose fault a failed sequence is."""

import pytest

from hotshoe.errors import RequestError


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


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/completions", {"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ("/v1/completions", {"response_format": {"type": "json_object"}}, "response_format"),
        ("/v1/responses", {"text": {"format": {"type": "json_object"}}}, "text"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_bad_grammar_names_its_field(http, engine, path: str, body, field: str, late) -> None:
    if late:
        engine.fail_after, engine.failure = 0, "grammar: it cannot be compiled"
    else:
        engine.refusal = RequestError("grammar: it is not supported", "grammar")
    prompt = {"input": "x"} if path == "/v1/responses" else {"prompt": "x"}
    for stream in (False, True):
        answer = http.post(path, **prompt, **body, stream=stream)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field
