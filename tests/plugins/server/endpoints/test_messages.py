"""`/v1/messages` over a scripted engine: Anthropic's form in, Anthropic's form out."""

import json
from typing import Any

import pytest

from hotshoe.errors import QueueFullError
from hotshoe_server.schemas.messages import KEEPS_ALL

PATH = "/v1/messages"
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {
    "name": "get_weather",
    "description": "Tell the weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}


def ask(http, messages: Any = ASK, **more: Any) -> Any:
    answer = http.post(PATH, messages=messages, max_tokens=64, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def prompt(engine, tokenizer) -> str:
    return tokenizer.decode(engine.requests[-1].prompt.token_ids, skip_special_tokens=False)


def test_an_answer_has_anthropics_shape(http, engine, tokenizer) -> None:
    answer = ask(http, system="Be brief.")
    assert answer.pop("id").startswith("msg_")
    usage = answer.pop("usage")
    assert usage["input_tokens"] > 0 and usage["output_tokens"] > 0
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "demo",
        "content": [{"type": "text", "text": "Hello there"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }
    assert prompt(engine, tokenizer) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
        "What is the weather in Paris?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tokens_of_the_cache_are_counted_apart(http, engine) -> None:
    plain = ask(http)["usage"]
    engine.num_cached = [3]
    cached = ask(http)["usage"]
    assert cached["cache_read_input_tokens"] == 3
    assert cached["input_tokens"] + 3 == plain["input_tokens"]


def test_why_a_message_ends(http, engine) -> None:
    engine.reply = "one two three four"
    stopped = ask(http, stop_sequences=["two"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "two")
    assert stopped["content"] == [{"type": "text", "text": "one "}]
    short = http.post(PATH, messages=ASK, max_tokens=1).json()
    assert (short["stop_reason"], short["usage"]["output_tokens"]) == ("max_tokens", 1)


def test_a_call_is_a_block(http, engine) -> None:
    engine.reply = f"Let me see.\n{CALL}"
    answer = ask(http, tools=[TOOL])
    text, call = answer["content"]
    assert text == {"type": "text", "text": "Let me see."}
    assert call.pop("id").startswith("toolu_")
    assert call == {"type": "tool_use", "name": "get_weather", "input": {"city": "Paris"}}
    assert answer["stop_reason"] == "tool_use"


def test_calls_and_results_reach_the_template(http, engine, tokenizer) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1"}
    said = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?", "cache_control": {}}]},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, USE]},
        {
            "role": "user",
            "content": [
                {**result, "content": [{"type": "text", "text": "Sunny"}]},
                {**result, "content": "no such city", "is_error": True},
                {"type": "text", "text": "Go on"},
            ],
        },
    ]
    ask(
        http,
        said,
        tools=[TOOL],
        system=[{"type": "text", "text": "A"}, {"type": "text", "text": "B"}],
    )
    found = prompt(engine, tokenizer)
    parts = ["A\nB", "Weather?", "I look.", '"city": "Paris"', "Sunny", "Error: no such", "Go on"]
    places = [found.index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ({"type": "auto"}, False),
        ({"type": "any"}, True),
        ({"type": "tool", "name": "get_weather"}, True),
    ],
)
def test_which_tools_are_called(http, engine, choice: dict, forced: bool) -> None:
    engine.reply = CALL
    assert ask(http, tools=[TOOL], tool_choice=choice)["stop_reason"] == "tool_use"
    assert (engine.requests[0].params.grammar is not None) is forced
    one = {"type": "auto", "disable_parallel_tool_use": True}
    engine.reply = CALL + "\n" + CALL
    assert len(ask(http, tools=[TOOL], tool_choice=one)["content"]) == 1
    assert len(ask(http, tools=[TOOL], tool_choice={"type": "none"})["content"]) == 1


def test_a_last_message_of_the_model_is_gone_on_with(http, engine, tokenizer) -> None:
    answer = ask(http, [*ASK, {"role": "assistant", "content": "It is"}])
    assert prompt(engine, tokenizer).endswith("<|im_start|>assistant\nIt is")
    assert answer["content"] == [{"type": "text", "text": "Hello there"}]


def test_thoughts_are_blocks(open_http, engine) -> None:
    http = open_http(reasoning_parser="qwen3")
    engine.reply = "<think>\nHm\n</think>\n\nYes."
    thinking = {"type": "enabled", "budget_tokens": 1024}
    thought, text = ask(http, thinking=thinking)["content"]
    assert (thought["type"], thought["thinking"].strip()) == ("thinking", "Hm")
    assert text == {"type": "text", "text": "Yes."}
    said = [*ASK, {"role": "assistant", "content": [thought, text]}, *ASK]
    assert ask(http, said)["content"][1] == text


def test_a_form_for_the_text(http, engine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    ask(http, output_config={"format": {"type": "json_schema", "schema": schema}})
    grammar = engine.requests[0].params.grammar
    assert (grammar.kind, json.loads(grammar.value)) == ("json_schema", schema)


def stream(http, **body: Any) -> list[tuple[str, dict[str, Any]]]:
    answer = http.post(PATH, messages=ASK, max_tokens=64, stream=True, **body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        fields = json.loads(data.removeprefix("data: "))
        assert name == f"event: {fields['type']}"
        found.append(fields)
    return found


@pytest.mark.parametrize("reply", ["Hello there", f"I look.\n{CALL}\n{CALL}", CALL, "", "\n"])
def test_a_stream_says_the_same(http, engine, reply: str) -> None:
    engine.reply = reply
    whole = ask(http, tools=[TOOL])
    start, *middle, delta, stop = stream(http, tools=[TOOL])
    assert (start["type"], stop) == ("message_start", {"type": "message_stop"})
    assert start["message"]["content"] == [] and start["message"]["stop_reason"] is None
    blocks: list[dict[str, Any]] = []
    is_open = False
    for fields in middle:
        kind, index = fields["type"], fields["index"]
        if kind == "content_block_start":
            assert not is_open and index == len(blocks)
            blocks.append(fields["content_block"] | {"json": ""})
            is_open = True
            continue
        assert is_open and index == len(blocks) - 1
        if kind == "content_block_stop":
            is_open = False
            continue
        change = fields["delta"]
        name = {"text_delta": "text", "input_json_delta": "partial_json"}[change["type"]]
        blocks[-1]["json" if name == "partial_json" else name] += change[name]
    assert not is_open
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
    assert [{**b, "id": 0} for b in blocks] == [{**b, "id": 0} for b in whole["content"]]
    assert delta["delta"]["stop_reason"] == whole["stop_reason"]
    assert delta["usage"] == whole["usage"]


def test_tokens_are_counted(http) -> None:
    asked = {"messages": ASK, "system": "Be brief.", "tools": [TOOL]}
    counted = http.post(f"{PATH}/count_tokens", **asked).json()
    assert counted == {
        "input_tokens": ask(http, **{k: v for k, v in asked.items() if k != "messages"})["usage"][
            "input_tokens"
        ]
    }


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "messages[0].content[0]: a block of type image",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}
                        ],
                    }
                ]
            },
            "messages[0].content[0].content[0]: a block of type image",
        ),
        ({"messages": [{"role": "user", "content": [USE]}]}, "type tool_use of role user"),
        ({"messages": []}, "messages may not be empty"),
        ({"system": [IMAGE]}, "system[0]: a block of type image"),
        ({"max_tokens": None}, "missing parameter: max_tokens"),
        ({"max_tokens": 100_000}, "maximum context length is 512 tokens"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"temperature": -1.0}, "temperature"),
        ({"mcp_servers": [{}]}, "mcp_servers is not supported"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "takes nothing",
        ),
        ({"context_management": {"edits": [KEEPS_ALL], "more": 1}}, "context_management"),
        ({"nonsense": 1}, "unknown parameter: nonsense"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools[0].type: tools of type web_search_20250305 run at Anthropic, not here",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "needs a name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "no tool x"),
    ],
)
def test_mistakes_are_named_in_anthropics_form(http, engine, body: dict, words: str) -> None:
    answer = http.post(PATH, **{"messages": ASK, "max_tokens": 64} | body)
    assert answer.status_code == 400
    found = answer.json()
    assert (found["type"], found["error"]["type"]) == ("error", "invalid_request_error")
    assert words in found["error"]["message"]
    assert engine.requests == [] or "maximum" in words


def test_errors_of_a_stream_and_of_the_queue(http, engine) -> None:
    engine.fail_after = 1
    *_, last = stream(http)
    assert last["type"] == "error" and last["error"]["type"] == "api_error"
    engine.error = QueueFullError("too many requests wait", 3.0)
    answer = http.post(PATH, messages=ASK, max_tokens=4)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert http.state.turn_away(PATH.encode(), [(b"host", b"127.0.0.1:8000")]) is None


def test_the_key_may_come_in_anthropics_header(open_http) -> None:
    key = {"api_key": ["secret-key"]}
    body = {"messages": ASK, "max_tokens": 4}
    for headers, status in (
        ({"x-api-key": "secret-key"}, 200),
        ({"x-api-key": "no"}, 401),
        ({}, 401),
    ):
        http = open_http(headers=headers, **key)
        assert http.post(PATH, **body).status_code == status


@pytest.mark.parametrize("edits", [None, [], [KEEPS_ALL]])
def test_edits_that_take_nothing_out(http, edits) -> None:
    body = {"messages": ASK, "max_tokens": 64, "context_management": {"edits": edits}}
    assert http.post(PATH, **body).status_code == 200
