"""Messages on their way into a template."""

import pytest

from hotshoe.errors import RequestError
from hotshoe.text.messages import template_message


def test_contents_become_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    assert template_message({"role": "user", "content": parts})["content"] == "a\nb"
    assert template_message({"role": "assistant", "content": None})["content"] == ""
    with pytest.raises(RequestError, match="text only, no image_url"):
        template_message({"role": "user", "content": [{"type": "image_url"}]})


@pytest.mark.parametrize(
    ("arguments", "found"),
    [('{"a": 1}', {"a": 1}), ("[1]", "[1]"), ("nonsense", "nonsense"), ("", "")],
)
def test_arguments_become_objects_where_they_are(arguments: str, found: object) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = template_message({"role": "assistant", "tool_calls": [call]})
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": found}
    assert call["function"]["arguments"] == arguments


@pytest.mark.parametrize("message", ["text", None, {"role": "user", "content": ["text"]}])
def test_messages_of_another_form_are_refused(message: object) -> None:
    with pytest.raises(RequestError, match=r"is an object|text only"):
        template_message(message)


def test_calls_of_another_form_are_left_to_the_template() -> None:
    for calls in ([1], [{"function": 1}], [{"function": {"arguments": {"a": 1}}}], "text"):
        assert template_message({"role": "assistant", "tool_calls": calls})["tool_calls"] == calls
