"""The clients that people use, against a real server: openai, langchain-openai, litellm."""

import asyncio
import functools
import json
import operator
import time
from collections.abc import Iterator

import openai
import pydantic
import pytest

SUM = [{"role": "user", "content": "What is 2 + 3?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
FLAT = {"type": "function", **TOOL["function"], "strict": True}


class Person(pydantic.BaseModel):
    """What is asked for."""

    name: str
    age: int


ANN = [{"role": "user", "content": "Give me JSON with name and age: Ann is 5 years old."}]


@pytest.fixture
def client(demo_server) -> Iterator[openai.OpenAI]:
    url = demo_server.url + "/v1"
    with openai.OpenAI(base_url=url, api_key=demo_server.key, max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"


def test_a_wrong_key(demo_server) -> None:
    wrong = openai.OpenAI(base_url=demo_server.url + "/v1", api_key="wrong", max_retries=0)
    with wrong as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="demo", prompt="One day", max_tokens=8, temperature=0)
    with client.completions.create(
        model="demo", prompt="One day", max_tokens=8, temperature=0, stream=True
    ) as stream:
        text = "".join(chunk.choices[0].text for chunk in stream)
    assert text == whole.choices[0].text
    assert whole.usage.completion_tokens == 8


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="demo", messages=SUM, temperature=0, seed=1)
    assert answer.choices[0].message.content == "2 + 3 = 5"
    assert answer.choices[0].finish_reason == "stop"


def test_chat_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="demo", messages=SUM, temperature=0, stream_options={"include_usage": True}
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == "2 + 3 = 5"
    assert final.usage.completion_tokens > len(deltas) > 1


def test_chat_async(demo_server) -> None:
    async def run() -> list[str]:
        url = demo_server.url + "/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=demo_server.key) as client:
            one = client.chat.completions.create(model="demo", messages=SUM, temperature=0)
            stream = await client.chat.completions.create(
                model="demo", messages=SUM, temperature=0, stream=True
            )
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return [(await one).choices[0].message.content, "".join(parts)]

    assert asyncio.run(run()) == ["2 + 3 = 5"] * 2


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_tools(client: openai.OpenAI, choice) -> None:
    body = {"model": "demo", "messages": WEATHER, "tools": [TOOL], "temperature": 0}
    answer = client.chat.completions.create(**body, tool_choice=choice)
    [call] = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "get_weather",
        {"city": "Paris"},
    )
    with client.chat.completions.stream(**body, tool_choice=choice) as stream:
        [streamed] = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    answered = [
        *WEATHER,
        answer.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    follow = client.chat.completions.create(**{**body, "messages": answered})
    assert follow.choices[0].message.content


def test_strict_tools_keep_to_their_schema(client: openai.OpenAI) -> None:
    only_ulm = {"type": "object", "properties": {"city": {"enum": ["Ulm"]}}, "required": ["city"]}
    function = {**TOOL["function"], "parameters": only_ulm, "strict": True}
    tools = [{"type": "function", "function": function}]
    body = {"model": "demo", "messages": WEATHER, "tools": tools, "temperature": 0}
    answer = client.chat.completions.create(**body)
    [call] = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Ulm"}
    with client.chat.completions.stream(**body) as stream:
        [streamed] = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    text = client.chat.completions.create(**{**body, "messages": SUM}).choices[0].message
    assert (text.content, text.tool_calls) == ("2 + 3 = 5", None)


def test_a_form_of_the_text_leaves_room_for_calls(client: openai.OpenAI) -> None:
    """As the official client sends them together; either may come."""
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    body = {"model": "demo", "tools": [strict], "response_format": Person, "temperature": 0}
    called = client.chat.completions.parse(**body, messages=WEATHER)
    [call] = called.choices[0].message.tool_calls
    assert call.function.parsed_arguments == {"city": "Paris"}
    assert called.choices[0].finish_reason == "tool_calls"
    told = client.chat.completions.parse(**body, messages=ANN).choices[0].message
    assert (told.parsed, told.tool_calls) == (Person(name="Ann", age=5), None)


def test_what_else_the_sdk_offers(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "2 + 3?"}]
    messages = [
        {"role": "developer", "content": "Be brief. " * 30},
        {"role": "user", "content": parts},
    ]
    body = {"model": "demo", "messages": messages, "seed": 1, "max_completion_tokens": 6}
    stream = client.chat.completions.create(
        **body, n=2, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = stream
    texts = ["", ""]
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
    whole = client.chat.completions.create(**body, n=2)
    assert texts == [choice.message.content for choice in whole.choices]
    assert last.choices == [] and last.usage.total_tokens == whole.usage.total_tokens
    assert whole.usage.completion_tokens_details.reasoning_tokens == 0
    again = client.chat.completions.create(**body, n=2)
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    body = {"model": "demo", "messages": SUM, "temperature": 0}
    stopped = client.chat.completions.create(**body, stop=["=", "never"])
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == (
        "2 + 3 ",
        "stop",
    )
    [first] = client.chat.completions.create(**body, logprobs=True).choices
    token_id = client.completions.create(
        model="demo", prompt="x", max_tokens=1, extra_body={"return_token_ids": True}
    )
    assert token_id.choices[0].token_ids
    assert first.logprobs.content[0].token == "2"
    cut = client.chat.completions.create(**body, max_completion_tokens=2).choices[0]
    assert cut.finish_reason == "length"


def test_responses_events_are_numbered(client: openai.OpenAI) -> None:
    body = {"model": "demo", "input": "What is 2 + 3?", "temperature": 0, "store": False}
    events = list(client.responses.create(**body, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    names = [event.type.removeprefix("response.") for event in events]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert names[-4:] == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert set(names[4:-4]) == {"output_text.delta"}
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(events[-1].response.id)


def test_chat_parse(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="demo", messages=ANN, response_format=Person, temperature=0
    )
    assert answer.choices[0].message.parsed == Person(name="Ann", age=5)


def test_json_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="demo", messages=ANN, response_format={"type": "json_object"}, max_tokens=64
    )
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="demo", messages=SUM, temperature=0, logprobs=True, top_logprobs=3
    )
    positions = answer.choices[0].logprobs.content
    assert "".join(p.token for p in positions).startswith("2 + 3 = 5")
    assert all(len(p.top_logprobs) == 3 and p.logprob <= 0 for p in positions)


def test_responses(client: openai.OpenAI) -> None:
    first = client.responses.create(model="demo", input="What is 2 + 3?", temperature=0)
    assert (first.output_text, first.status) == ("2 + 3 = 5", "completed")
    second = client.responses.create(
        model="demo", input="What is 4 + 4?", previous_response_id=first.id, temperature=0
    )
    assert second.output_text == "4 + 4 = 8"
    assert second.usage.input_tokens > first.usage.total_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_responses_logprobs(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model="demo",
        input="What is 2 + 3?",
        temperature=0,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    [entry, *_] = found = answer.output[0].content[0].logprobs
    assert "".join(entry.token for entry in found) == answer.output_text
    assert entry.top_logprobs[0].logprob == entry.logprob <= 0


def test_conversations(client: openai.OpenAI) -> None:
    made = client.conversations.create(metadata={"topic": "sums"})
    assert client.conversations.retrieve(made.id).metadata == {"topic": "sums"}
    body = {"model": "demo", "conversation": made.id, "temperature": 0}
    assert client.responses.create(input="What is 2 + 3?", **body).output_text == "2 + 3 = 5"
    assert client.responses.create(input="What is 4 + 4?", **body).output_text == "4 + 4 = 8"
    items = list(client.conversations.items.list(made.id, order="asc", limit=3))
    assert [item.role for item in items] == ["user", "assistant"] * 2
    assert client.conversations.items.retrieve(items[0].id, conversation_id=made.id).id
    client.conversations.items.delete(items[0].id, conversation_id=made.id)
    assert len(list(client.conversations.items.list(made.id))) == 3
    client.conversations.update(made.id, metadata={})
    assert client.conversations.delete(made.id).deleted


def test_responses_in_the_background(client: openai.OpenAI) -> None:
    body = {"model": "demo", "input": "What is 2 + 3?", "temperature": 0, "background": True}
    answer = client.responses.create(**body)
    limit = time.monotonic() + 60
    while answer.status in ("queued", "in_progress") and time.monotonic() < limit:
        answer = client.responses.retrieve(answer.id)
    assert (answer.status, answer.output_text) == ("completed", "2 + 3 = 5")
    assert client.responses.cancel(answer.id).status == "completed"
    whole = list(client.responses.create(**body, stream=True))
    assert [event.sequence_number for event in whole] == list(range(len(whole)))
    again = client.responses.retrieve(whole[0].response.id, stream=True, starting_after=3)
    assert [event.to_dict() for event in again] == [event.to_dict() for event in whole[4:]]
    long = client.responses.create(**body, extra_body={"ignore_eos": True})
    assert client.responses.cancel(long.id).status in ("cancelled", "incomplete")


def test_responses_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(model="demo", input="What is 2 + 3?", temperature=0) as stream:
        names = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == "2 + 3 = 5"
    assert names[0] == "response.created" and names[-1] == "response.completed"


def test_responses_tools(client: openai.OpenAI) -> None:
    body = {"model": "demo", "tools": [FLAT], "temperature": 0}
    first = client.responses.create(input=WEATHER, **body)
    [call] = first.output
    assert (call.type, json.loads(call.arguments)) == ("function_call", {"city": "Paris"})
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    assert client.responses.create(input=[*WEATHER, call, output], **body).output_text
    again = client.responses.create(input=[output], previous_response_id=first.id, **body)
    assert again.output_text


def test_responses_parse(client: openai.OpenAI) -> None:
    answer = client.responses.parse(model="demo", input=ANN, text_format=Person, temperature=0)
    assert answer.output_parsed == Person(name="Ann", age=5)


def test_mistakes_are_the_sdks_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="demo", messages=SUM, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=SUM)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_langchain(demo_server) -> None:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(
        model="demo", base_url=demo_server.url + "/v1", api_key=demo_server.key, temperature=0
    )
    assert chat.invoke("What is 2 + 3?").content == "2 + 3 = 5"
    assert "".join(chunk.content for chunk in chat.stream("What is 2 + 3?")) == "2 + 3 = 5"
    [call] = chat.bind_tools([TOOL]).invoke("What is the weather in Paris?").tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    for method in ("json_schema", "function_calling"):
        asked = chat.with_structured_output(Person, method=method)
        assert asked.invoke(ANN[0]["content"]) == Person(name="Ann", age=5)
    strict = chat.bind_tools([TOOL], strict=True, parallel_tool_calls=False)
    chunks = list(strict.stream("What is the weather in Paris?", stream_usage=True))
    whole = functools.reduce(operator.add, chunks)
    assert whole.tool_calls[0]["args"] == {"city": "Paris"}
    assert whole.usage_metadata["output_token_details"]["reasoning"] == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_litellm(demo_server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network
    import litellm

    body = {
        "model": "hosted_vllm/demo",
        "api_base": demo_server.url + "/v1",
        "api_key": demo_server.key,
        "temperature": 0,
    }
    answer = litellm.completion(messages=SUM, **body)
    assert answer.choices[0].message.content == "2 + 3 = 5"
    parts = litellm.completion(messages=SUM, stream=True, **body)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == "2 + 3 = 5"
    called = litellm.completion(messages=WEATHER, tools=[TOOL], **body)
    [call] = called.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}


def test_anthropics_client(demo_server) -> None:
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")
    key = demo_server.key
    with anthropic.Anthropic(base_url=demo_server.url, api_key=key, max_retries=0) as client:
        asked = {"model": "demo", "max_tokens": 40, "messages": SUM}
        asked["extra_body"] = {"temperature": 0.0}
        whole = client.messages.create(**asked, system="Be brief.")
        assert whole.stop_reason == "end_turn" and "5" in whole.content[0].text
        with client.messages.stream(**asked, system="Be brief.") as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert text == whole.content[0].text == final.content[0].text
        assert final.usage.output_tokens == whole.usage.output_tokens
        counted = client.messages.count_tokens(model="demo", messages=SUM, system="Be brief.")
        cached = whole.usage.cache_read_input_tokens
        assert counted.input_tokens == whole.usage.input_tokens + cached

        function = TOOL["function"]
        tool = {
            "name": function["name"],
            "description": function["description"],
            "input_schema": function["parameters"],
        }
        asked |= {"messages": WEATHER, "tools": [tool], "tool_choice": {"type": "any"}}
        with client.messages.stream(**asked) as stream:
            called = stream.get_final_message()
        [use] = called.content
        assert called.stop_reason == "tool_use"
        assert (use.type, use.name, list(use.input)) == ("tool_use", "get_weather", ["city"])
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "Sunny, 20 degrees"}
        said = [*WEATHER, {"role": "assistant", "content": called.content}]
        said.append({"role": "user", "content": [result]})
        answer = client.messages.create(
            **asked | {"messages": said, "tool_choice": {"type": "auto"}}
        )
        assert answer.content and answer.usage.input_tokens + answer.usage.output_tokens > 0
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(**asked | {"model": "other"})
    wrong = anthropic.Anthropic(base_url=demo_server.url, api_key="wrong", max_retries=0)
    with wrong as client, pytest.raises(anthropic.AuthenticationError):
        client.messages.create(**asked)
