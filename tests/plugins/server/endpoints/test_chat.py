"""`/v1/chat/completions` over a scripted engine: whole answers, streams, tools, reasoning."""

import json
from dataclasses import replace

import pytest

from hotshoe.errors import RequestError

PATH = "/v1/chat/completions"
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
OTHER = CALL.replace("Paris", "Oslo")


def joined(chunks: list[dict], field: str = "content", index: int = 0) -> str:
    choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    return "".join(choice["delta"].get(field) or "" for choice in choices)


def calls_of(chunks: list[dict]) -> list[dict]:
    """Put the calls of a stream together as the SDK does."""
    calls: dict[int, dict] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            for delta in choice["delta"].get("tool_calls") or ():
                call = calls.setdefault(delta["index"], {"arguments": ""})
                call["id"] = call.get("id") or delta.get("id")
                function = delta.get("function") or {}
                call["name"] = call.get("name") or function.get("name")
                call["arguments"] += function.get("arguments") or ""
    return [calls[index] for index in sorted(calls)]


def test_an_answer_has_openais_shape(http, engine) -> None:
    answer = http.post(PATH, messages=ASK).json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "demo"
    assert answer["id"].startswith("chatcmpl-")
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello there", "refusal": None}
    assert answer["system_fingerprint"].startswith("fp_")
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    usage = answer["usage"]
    prompt = engine.requests[0].prompt.token_ids
    assert usage["prompt_tokens"] == len(prompt)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_the_models_template_makes_the_prompt(http, engine, tokenizer) -> None:
    http.post(PATH, messages=[{"role": "system", "content": "Be brief."}, *ASK])
    text = tokenizer.decode(engine.requests[0].prompt.token_ids, skip_special_tokens=False)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
        "What is the weather in Paris?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_stream_says_the_same(http) -> None:
    chunks = http.events(PATH, messages=ASK, stream_options={"include_usage": True})
    assert joined(chunks) == "Hello there"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    whole = http.post(PATH, messages=ASK).json()
    assert chunks[-1]["usage"] == whole["usage"]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert {chunk["system_fingerprint"] for chunk in chunks} == {whole["system_fingerprint"]}
    assert not any("usage" in chunk for chunk in http.events(PATH, messages=ASK))


def test_usage_in_every_chunk_when_asked(http) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = http.events(PATH, messages=ASK, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 1


@pytest.mark.parametrize("n", [1, 2])
def test_tokens_of_reasoning_are_counted(open_http, engine, tokenizer, n: int) -> None:
    http = open_http(reasoning_parser="qwen3")
    thought, rest = "<think>\nSo many thoughts", "\n</think>\n\nYes."
    engine.reply = thought + rest
    assert tokenizer.encode(engine.reply, False)[: len(tokenizer.encode(thought, False))] == (
        tokenizer.encode(thought, False)
    )
    usage = http.post(PATH, messages=ASK, n=n).json()["usage"]
    found = usage["completion_tokens_details"]["reasoning_tokens"]
    assert found == n * len(tokenizer.encode(thought, False))
    assert 0 < found < usage["completion_tokens"]
    asked = {"stream_options": {"include_usage": True}, "include_reasoning": False}
    assert http.events(PATH, messages=ASK, n=n, **asked)[-1]["usage"] == usage


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("both", {"reasoning", "reasoning_content"}),
        ("reasoning", {"reasoning"}),
        ("reasoning_content", {"reasoning_content"}),
    ],
)
def test_names_of_reasoning(open_http, engine, field: str, names: set[str]) -> None:
    http = open_http(reasoning_parser="qwen3", reasoning_field=field)
    engine.reply = "<think>\nSo many thoughts\n</think>\n\nYes."
    message = http.post(PATH, messages=ASK).json()["choices"][0]["message"]
    chunks = http.events(PATH, messages=ASK)
    for name in ("reasoning", "reasoning_content"):
        assert ("So many thoughts" in message.get(name, "")) == (name in names)
        assert ("So many thoughts" in joined(chunks, name)) == (name in names)


def test_cached_tokens_are_those_of_the_first_sequence(http, engine) -> None:
    engine.num_cached = [16, 48]
    for n, cached in ((1, 16), (2, 16)):
        usage = http.post(PATH, messages=ASK, n=n).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == cached
        assert usage["completion_tokens_details"]["reasoning_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices(http, stream: bool) -> None:
    if stream:
        chunks = http.events(PATH, messages=ASK, n=3)
        texts = [joined(chunks, index=index) for index in range(3)]
        ends = [c["choices"][0] for c in chunks if c["choices"][0]["finish_reason"]]
        assert sorted(end["index"] for end in ends) == [0, 1, 2]
    else:
        choices = http.post(PATH, messages=ASK, n=3).json()["choices"]
        texts = [choice["message"]["content"] for choice in choices]
    assert texts == ["Hello there"] * 3


def test_one_length_limit(http) -> None:
    response = http.post(PATH, messages=ASK, max_tokens=9, max_completion_tokens=9)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


def test_a_length_limit(http) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        [choice] = http.post(PATH, messages=ASK, **{name: 1}).json()["choices"]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["content"] == "Hello"


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities(http, stream: bool) -> None:
    body = {"messages": ASK, "logprobs": True, "top_logprobs": 2}
    if stream:
        chunks = http.events(PATH, **body)
        parts = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
        content = [position for part in parts for position in part["content"]]
    else:
        content = http.post(PATH, **body).json()["choices"][0]["logprobs"]["content"]
    assert "".join(position["token"] for position in content).startswith("Hello there")
    first = content[0]
    assert first["logprob"] == -0.5
    assert bytes(first["bytes"]).decode() == first["token"]
    assert [rival["logprob"] for rival in first["top_logprobs"]] == [-1.0, -2.0]


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls(http, engine, stream: bool) -> None:
    engine.reply = f"{CALL}\n{OTHER}"
    body = {"messages": ASK, "tools": [TOOL]}
    if stream:
        chunks = http.events(PATH, **body)
        calls, content = calls_of(chunks), joined(chunks)
        reason = chunks[-1]["choices"][0]["finish_reason"]
    else:
        [choice] = http.post(PATH, **body).json()["choices"]
        calls = [{"id": c["id"], **c["function"]} for c in choice["message"]["tool_calls"]]
        content, reason = choice["message"]["content"] or "", choice["finish_reason"]
    assert [json.loads(call["arguments"])["city"] for call in calls] == ["Paris", "Oslo"]
    assert {call["name"] for call in calls} == {"get_weather"}
    assert len({call["id"] for call in calls}) == 2
    assert content.strip() == ""
    assert reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_only_without_parallel_calls(http, engine, stream: bool) -> None:
    engine.reply = f"{CALL}\n{OTHER}"
    body = {"messages": ASK, "tools": [TOOL], "parallel_tool_calls": False}
    if stream:
        calls = calls_of(http.events(PATH, **body))
    else:
        calls = http.post(PATH, **body).json()["choices"][0]["message"]["tool_calls"]
    assert len(calls) == 1


def test_without_tools_a_call_is_text(http, engine) -> None:
    engine.reply = CALL
    offers = {"tools": [TOOL], "tool_choice": "none"}
    for body in ({}, offers, {"tools": [], "tool_choice": "auto"}, {"tool_choice": "auto"}):
        [choice] = http.post(PATH, messages=ASK, **body).json()["choices"]
        assert choice["message"]["content"] == CALL
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_malformed_call_is_text(http, engine, stream: bool) -> None:
    engine.reply = "<tool_call>\nnonsense</tool_call>"
    body = {"messages": ASK, "tools": [TOOL]}
    if stream:
        chunks = http.events(PATH, **body)
        assert joined(chunks) == engine.reply
        assert calls_of(chunks) == []
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    else:
        [choice] = http.post(PATH, **body).json()["choices"]
        assert choice["message"]["content"] == engine.reply
        assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_a_forced_call_becomes_a_grammar(http, engine, choice) -> None:
    engine.reply = CALL
    http.post(PATH, messages=ASK, tools=[TOOL], tool_choice=choice)
    grammar = engine.requests[0].params.grammar
    assert grammar.kind == "structural_tag"
    assert "get_weather" in grammar.value
    assert '"city"' in grammar.value


def test_a_response_format_becomes_a_grammar(http, engine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    http.post(PATH, messages=ASK, response_format=form)
    http.post(PATH, messages=ASK, response_format={"type": "json_object"})
    http.post(PATH, messages=ASK, response_format={"type": "text"})
    first, second, third = (request.params.grammar for request in engine.requests)
    assert (first.kind, json.loads(first.value)) == ("json_schema", schema)
    assert second.kind == "json_object"
    assert third is None


def test_a_schema_is_strict_unless_told_otherwise(http, engine) -> None:
    for strict in ({}, {"strict": True}, {"strict": False}):
        form = {"name": "x", "schema": {"type": "object", "not": {}}, **strict}
        http.post(PATH, messages=ASK, response_format={"type": "json_schema", "json_schema": form})
    assert [r.params.grammar.strict for r in engine.requests] == [True, True, False]


@pytest.mark.parametrize(
    ("parser", "form", "kind"),
    [
        ("hermes", {"response_format": {"type": "json_object"}}, "structural_tag"),
        ("harmony", {"response_format": {"type": "json_object"}}, "structural_tag"),
        ("hermes", {"structured_outputs": {"json": '{"enum": [1]}'}}, "structural_tag"),
        ("hermes", {"structured_outputs": {"json": "{"}}, "json_schema"),
        ("hermes", {"structured_outputs": {"json": "3"}}, "json_schema"),
        ("hermes", {"structured_outputs": {"regex": "a+"}}, "regex"),
        ("qwen3_xml", {"response_format": {"type": "json_object"}}, "structural_tag"),
    ],
)
def test_a_form_beside_tools(open_http, engine, parser: str, form, kind: str) -> None:
    http = open_http(tool_call_parser=parser)
    http.post(PATH, messages=ASK, tools=[TOOL], **form)
    http.post(PATH, messages=ASK, tools=[TOOL], tool_choice="none", **form)
    with_tools, without = (request.params.grammar for request in engine.requests)
    assert with_tools.kind == kind
    assert without.kind != "structural_tag"


def test_a_forced_call_leaves_no_text_to_give_a_form(http, engine) -> None:
    form = {"response_format": {"type": "json_object"}}
    http.post(PATH, messages=ASK, tools=[TOOL], tool_choice="required", **form)
    http.post(PATH, messages=ASK, tools=[TOOL], tool_choice="required")
    with_form, without = (request.params.grammar for request in engine.requests)
    assert with_form == without


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["x" * 2_000_000]}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        (
            {"response_format": {"type": "structural_tag", "triggers": ["x" * 2_000_000]}},
            "response_format",
        ),
    ],
)
def test_malformed_forms_name_their_field(http, body: dict, param: str) -> None:
    answer = http.post(PATH, messages=ASK, **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_special_marks_of_reasoning_may_stand_in_free_text(
    open_http, engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = open_http(reasoning_parser="mistral", tool_call_parser="mistral")
    special = {7: "[THINK]", 8: "[/THINK]"}
    monkeypatch.setattr(http.state.default.renderer.tokenizer, "special_token_texts", special)
    tool = {**TOOL, "function": {**TOOL["function"], "strict": True}}
    http.post(PATH, messages=ASK, tools=[tool])
    http.post(PATH, messages=ASK, tools=[tool], tool_choice="required")
    free, forced = (json.loads(r.params.grammar.value) for r in engine.requests)
    assert free["marks"] == ["[THINK]", "[/THINK]"]
    assert "marks" not in forced and "preface" in forced


def test_reasoning_is_kept_apart(open_http, engine) -> None:
    http = open_http(reasoning_parser="qwen3")
    engine.reply = "<think>\nHm.\n</think>\n\nYes."
    message = http.post(PATH, messages=ASK).json()["choices"][0]["message"]
    assert message["content"].strip() == "Yes."
    assert message["reasoning_content"].strip() == "Hm."
    chunks = http.events(PATH, messages=ASK)
    assert joined(chunks).strip() == "Yes."
    assert joined(chunks, "reasoning_content").strip() == "Hm."
    hidden = http.events(PATH, messages=ASK, include_reasoning=False)
    assert joined(hidden, "reasoning_content") == ""


@pytest.mark.parametrize(
    "form",
    [
        {"structured_outputs": {"choice": ["<think>a</think> b", "c"]}},
        {"structured_outputs": {"regex": "<think>a</think> b"}},
        {"response_format": {"type": "json_object"}},
    ],
    ids=["choice", "regex", "json"],
)
def test_a_form_may_look_like_reasoning_or_a_call(open_http, engine, form) -> None:
    http = open_http(reasoning_parser="qwen3", tool_call_parser="hermes")
    for reply in ("<think>a</think> b", '{"a":  "x  <tool_call>y</tool_call>"}'):
        engine.reply = reply
        message = http.post(PATH, messages=ASK, **form).json()["choices"][0]["message"]
        assert message["content"] == engine.reply
        assert not message.get("reasoning_content") and not message.get("tool_calls")


def test_a_stream_of_a_form_holds_no_blanks_back(open_http, engine) -> None:
    http = open_http(reasoning_parser="qwen3")
    engine.reply = '{"a": "x  y"}'
    plain = [c["choices"][0]["delta"].get("content") for c in http.events(PATH, messages=ASK)]
    form = {"response_format": {"type": "json_object"}}
    formed = http.events(PATH, messages=ASK, **form)
    texts = [c["choices"][0]["delta"].get("content") for c in formed]
    assert "".join(filter(None, texts)) == engine.reply
    assert any((text or "").endswith(" ") for text in texts)
    assert not any((text or "").endswith(" ") for text in plain)


@pytest.mark.parametrize("tools", [[], [TOOL]])
def test_blanks_may_be_forbidden(http, engine, tools) -> None:
    more = {"tools": tools} if tools else {}
    for disabled in (True, False):
        form = {"json": "{}", "disable_any_whitespace": disabled}
        http.post(PATH, messages=ASK, structured_outputs=form, **more)
    assert [r.params.grammar.max_blanks for r in engine.requests] == [0, None]


def test_a_grammar_waits_for_the_end_of_reasoning(open_http, engine, tokenizer) -> None:
    http = open_http(reasoning_parser="qwen3")
    body = {"messages": ASK, "response_format": {"type": "json_object"}}
    http.post(PATH, **body, chat_template_kwargs={"enable_thinking": True})
    http.post(PATH, **body)
    thinking, plain = (request.params.grammar for request in engine.requests)
    assert tuple(tokenizer.encode("</think>", False)) in thinking.after
    assert plain.after == ()


@pytest.mark.parametrize("name", ["self", "cls", "source", "variables", "context", "__class__"])
def test_a_variable_of_any_name_is_no_fault_of_the_server(http, name: str) -> None:
    got = http.post(PATH, messages=ASK, chat_template_kwargs={name: "x"})
    if name == "self":  # as templates call themselves
        assert got.status_code == 400
        assert "chat_template_kwargs may not set self" in got.text
    else:
        assert got.status_code == 200


def test_the_models_defaults_stand_for_what_is_left_open(http, engine) -> None:
    found = {"temperature": 0.6, "top_k": 20, "max_tokens": 5}
    engine.info = replace(engine.info, sampling_defaults=found)
    http.post(PATH, messages=ASK)
    http.post(PATH, messages=ASK, temperature=0, top_k=0, max_completion_tokens=7)
    http.post("/v1/completions", prompt="x")
    answer = http.post("/v1/responses", input="x").json()
    http.post("/inference/v1/generate", token_ids=[5])
    chat, own, completion, response, tokens = (request.params for request in engine.requests)
    assert (chat.temperature, chat.top_k, chat.max_tokens) == (0.6, 20, 5)
    assert (own.temperature, own.top_k, own.max_tokens) == (0.0, 0, 7)
    assert (completion.temperature, completion.max_tokens) == (0.6, 16)
    assert (response.temperature, response.max_tokens) == (0.6, 5)
    assert (answer["temperature"], answer["top_p"]) == (0.6, 1.0)
    assert (tokens.temperature, tokens.max_tokens) == (0.6, 5)


def test_token_ids_when_asked(http, engine) -> None:
    answer = http.post(PATH, messages=ASK, return_token_ids=True).json()
    assert answer["prompt_token_ids"] == list(engine.requests[0].prompt.token_ids)
    ids = answer["choices"][0]["token_ids"]
    chunks = http.events(PATH, messages=ASK, return_token_ids=True)
    streamed = [i for c in chunks for i in c["choices"][0].get("token_ids") or ()]
    assert streamed == ids
    assert chunks[0]["prompt_token_ids"] == answer["prompt_token_ids"]


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("messages", [], "messages"),
        ("temperature", -1, "temperature"),
        ("temperature", "hot", "temperature"),
        ("n", 0, "n"),
        ("n", 10**30, "n"),
        ("top_logprobs", 3, "top_logprobs"),
        ("stop", [""], "stop"),
        ("stop", [1], "stop[0]"),
        ("logit_bias", {"x": 1}, "logit_bias"),
        ("tool_choice", "required", "tool_choice"),
        ("chat_template_kwargs", {"messages": "x"}, "chat_template_kwargs"),
        ("functions", [{"name": "f"}], "functions"),
        ("audio", {"voice": "x"}, "audio"),
        ("modalities", ["audio"], "modalities"),
        ("cache_salt", "", "cache_salt"),
        ("request_id", "two words", "request_id"),
        ("truncate_prompt_tokens", 0, "truncate_prompt_tokens"),
        ("truncate_prompt_tokens", 513, "truncate_prompt_tokens"),
        ("priority", 1, "priority"),
        ("use_beam_search", "yes", "use_beam_search"),
        ("guided_json", {"type": "object"}, "guided_json"),
        ("chat_template", 5, "chat_template"),
        ("max_completion_tokens", 0, "max_completion_tokens"),
        ("max_completion_tokens", 10_000, "max_completion_tokens"),
        ("echo", True, "echo"),
        ("nonsense", 1, "nonsense"),
        ("truncation_side", "middle", "truncation_side"),
        ("thinking_token_budget", -2, "thinking_token_budget"),
        ("ec_transfer_params", {"a": 1}, "ec_transfer_params"),
        ("watermarking", True, "watermarking"),
        ("routed_experts_prompt_start", 2, "routed_experts_prompt_start"),
        ("return_token_offsets", True, "return_token_offsets"),
        ("return_prompt_text", True, "return_prompt_text"),
        ("stream_interval", 8, "stream_interval"),
    ],
)
def test_mistakes_are_named(http, field: str, value: object, param: str) -> None:
    response = http.post(PATH, **{"messages": ASK, field: value})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_arguments_of_logits_processors(http, engine) -> None:
    given = {"no_echo": 4, "words": ["a"]}
    assert http.post(PATH, messages=ASK, vllm_xargs=given).status_code == 200
    assert http.post("/inference/v1/generate", token_ids=[5], extra_args=given).status_code == 200
    sent = {"sampling_params": {"extra_args": given}}
    assert http.post("/inference/v1/generate", token_ids=[5], **sent).status_code == 200
    assert [request.params.extra_args for request in engine.requests] == [given] * 3
    engine.refusal = RequestError("extra_args.no_echo must be an integer", "extra_args.no_echo")
    error = http.post(PATH, messages=ASK, vllm_xargs=given).json()["error"]
    assert error["message"] == "vllm_xargs.no_echo must be an integer"
    assert error["param"] == "vllm_xargs.no_echo"
    many = {str(number): 1 for number in range(65)}
    for field, value in (("vllm_xargs", [1]), ("vllm_xargs", many), ("use_beam_search", True)):
        response = http.post(PATH, messages=ASK, **{"vllm_xargs": given, field: value})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "vllm_xargs"


def test_harmless_fields_of_openai_are_accepted(http) -> None:
    body = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "modalities": ["text"],
        "parallel_tool_calls": True,
        "temperature": None,
        "use_beam_search": False,
        "length_penalty": 1.0,
        "best_of": 1,
        "vllm_xargs": {},
        "spaces_between_special_tokens": True,
        "add_special_tokens": False,
        "logprobs": False,
        "top_logprobs": 0,
        "thinking_token_budget": -1,
        "truncation_side": None,
        "session_id": "agent-1",
        "ec_transfer_params": {},
        "watermarking": False,
        "routed_experts_prompt_start": 0,
        "return_token_offsets": False,
        "return_prompt_text": False,
        "return_mm_kwargs": True,
        "stream_interval": 1,
        "reasoning_effort": "max",
    }
    assert http.post(PATH, messages=ASK, **body).status_code == 200


@pytest.mark.parametrize("shown", [True, False])
def test_spaces_that_the_tokenizer_puts_between_special_tokens(
    http, engine, monkeypatch, shown: bool
) -> None:
    body = {"spaces_between_special_tokens": False, "skip_special_tokens": not shown}
    assert http.post(PATH, messages=ASK, **body).status_code == 200
    monkeypatch.setitem(vars(engine.tokenizer), "spaces_special_tokens", True)
    response = http.post(PATH, messages=ASK, **body)
    assert response.status_code == (400 if shown else 200)
    if shown:
        assert response.json()["error"]["param"] == "spaces_between_special_tokens"


def test_an_engine_failure_after_the_first_token(http, engine) -> None:
    engine.fail_after = 1
    response = http.post(PATH, messages=ASK)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "generation_failed")
    chunks = http.events(PATH, messages=ASK)
    assert chunks[-1]["error"]["code"] == "generation_failed"


def test_a_deadline(open_http, engine) -> None:
    http = open_http(request_timeout_s=5.0)
    engine.deadline_after = 0
    response = http.post(PATH, messages=ASK)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert engine.requests[0].timeout_s == 5.0


def test_a_log_probability_too_many_is_named_as_it_was_asked_for(http) -> None:
    for stream in (False, True):
        body = {"logprobs": True, "top_logprobs": 999, "stream": stream}
        error = http.post(PATH, messages=ASK, **body).json()["error"]
        assert error["param"] == "top_logprobs" and error["message"].startswith("top_logprobs")


def test_more_tokens_than_there_is_room_for(open_http, engine) -> None:
    error = open_http().post(PATH, messages=ASK, max_tokens=512).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
    assert "maximum context length is 512 tokens" in error["message"]
    room = 512 - len(error_prompt(open_http(), engine))
    assert open_http().post(PATH, messages=ASK, max_tokens=room).status_code == 200
    assert open_http(clip_max_tokens=True).post(PATH, messages=ASK, max_tokens=512).is_success


def error_prompt(http, engine) -> list[int]:
    http.post(PATH, messages=ASK)
    return engine.requests[-1].prompt.token_ids


def test_a_prompt_that_is_too_long_names_the_context(http) -> None:
    error = http.post(PATH, messages=[{"role": "user", "content": "x " * 600}]).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 512 tokens" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_goes_on_with_the_last_message(http, engine, tokenizer, stream: bool) -> None:
    said = [*ASK, {"role": "assistant", "content": "It is"}]
    body = {"messages": said, "continue_final_message": True}
    for echo, expected in ((False, "Hello there"), (True, "It isHello there")):
        if stream:
            assert joined(http.events(PATH, **body, echo=echo)) == expected
        else:
            [choice] = http.post(PATH, **body, echo=echo).json()["choices"]
            assert choice["message"]["content"] == expected
    prompt = tokenizer.decode(engine.requests[-1].prompt.token_ids, False)
    assert prompt.endswith("<|im_start|>assistant\nIt is")
    error = http.post(PATH, **body, add_generation_prompt=True).json()["error"]
    assert error["param"] == "continue_final_message"


def test_a_salt_and_an_id_reach_the_engine(http, engine) -> None:
    answer = http.post(PATH, messages=ASK, cache_salt="mine", request_id="r-1").json()
    assert answer["id"] == engine.requests[-1].id == "chatcmpl-r-1"
    assert engine.requests[-1].prompt.cache_salt == "mine"


def test_prompts_are_cut_at_their_end_where_that_is_asked_for(http, engine) -> None:
    whole = error_prompt(http, engine)
    for side, kept in (("right", whole[:4]), ("left", whole[-4:])):
        http.post(PATH, messages=ASK, truncate_prompt_tokens=4, truncation_side=side)
        assert engine.requests[-1].prompt.token_ids == kept


def test_prompts_are_cut_at_their_beginning(http, engine) -> None:
    whole = error_prompt(http, engine)
    for count, kept in ((4, whole[-4:]), (500, whole), (-1, whole)):
        http.post(PATH, messages=ASK, truncate_prompt_tokens=count)
        assert engine.requests[-1].prompt.token_ids == kept
    long = [{"role": "user", "content": "x " * 600}]
    assert http.post(PATH, messages=long, truncate_prompt_tokens=-1, max_tokens=12).is_success
    assert len(engine.requests[-1].prompt.token_ids) == 500


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_named_by_their_ids(http, tokenizer, stream: bool) -> None:
    body = {"messages": ASK, "logprobs": True, "return_tokens_as_token_ids": True}
    if stream:
        choices = [c for chunk in http.events(PATH, **body) for c in chunk["choices"]]
        names = [t["token"] for c in choices if c["logprobs"] for t in c["logprobs"]["content"]]
    else:
        [choice] = http.post(PATH, **body).json()["choices"]
        names = [token["token"] for token in choice["logprobs"]["content"]]
    ids = [*tokenizer.encode("Hello there", False), 8183]
    assert names == [f"token_id:{token_id}" for token_id in ids]


def test_documents_reach_the_template(http, engine, monkeypatch) -> None:
    templates = http.state.default.renderer.tokenizer.chat_templates
    text = "{% for d in documents %}{{ d.text }}{% endfor %}"
    monkeypatch.setitem(templates, "default", text)
    http.post(PATH, messages=ASK, documents=[{"text": "one "}, {"text": "two"}])
    decoded = http.state.default.renderer.tokenizer.decode(
        engine.requests[-1].prompt.token_ids, False
    )
    assert decoded == "one two"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("length", [1, 2, 5, 8, 12, 14])
def test_a_forced_call_that_is_cut_leaks_no_markup(http, engine, stream: bool, length: int) -> None:
    engine.reply = CALL
    body = {"messages": ASK, "tools": [TOOL], "tool_choice": "required", "max_tokens": length}
    if stream:
        chunks = http.events(PATH, **body)
        text, reason = joined(chunks), chunks[-1]["choices"][0]["finish_reason"]
    else:
        [choice] = http.post(PATH, **body).json()["choices"]
        text, reason = choice["message"]["content"] or "", choice["finish_reason"]
    assert (text, reason) == ("", "length")


def test_a_form_beside_a_forced_call_is_refused(http) -> None:
    body = {"tools": [TOOL], "tool_choice": "required", "structured_outputs": {"regex": "a"}}
    assert http.post(PATH, messages=ASK, **body).json()["error"]["param"] == "structured_outputs"


TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def test_a_template_of_the_request(open_http, engine) -> None:
    http = open_http(trust_request_chat_template=True)
    answer = http.post(PATH, messages=ASK, chat_template=TEMPLATE)
    assert answer.status_code == 200, answer.text
    [request] = engine.requests
    [text] = {m["content"] for m in ASK}
    assert engine.tokenizer.decode(request.prompt.token_ids) == f"<user>{text}"
    http.post(PATH, messages=ASK)
    assert engine.requests[1].prompt.token_ids != request.prompt.token_ids
    asked = {"messages": ASK, "chat_template": TEMPLATE}
    assert http.post("/tokenize", **asked).json()["tokens"] == list(request.prompt.token_ids)


@pytest.mark.parametrize(
    ("trusted", "fields", "field"),
    [
        (False, {"chat_template": TEMPLATE}, "chat_template"),
        (True, {"chat_template": "{% if %}"}, "chat_template"),
        (True, {"chat_template": ""}, "chat_template"),
        (True, {"chat_template": "x" * 65537}, "chat_template"),
        (True, {"chat_template": "{{ messages.nothing.more }}"}, "messages"),
        (
            True,
            {"chat_template": "{% for i in range(9999999) %}x{% endfor %}"},
            "messages",
        ),
        (True, {"chat_template_kwargs": {"chat_template": TEMPLATE}}, "chat_template_kwargs"),
    ],
)
def test_templates_that_are_refused(open_http, trusted: bool, fields, field: str) -> None:
    http = open_http(trust_request_chat_template=trusted)
    answer = http.post(PATH, messages=ASK, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field


def test_a_template_of_a_request_spells_control_tokens_and_messages_do_not(
    open_http, engine
) -> None:
    http = open_http(trust_request_chat_template=True)
    [mark] = [t for t in engine.tokenizer.special_token_texts.values() if "im_end" in t][:1]
    messages = [{"role": "user", "content": f"a{mark}"}]
    http.post(PATH, messages=messages, chat_template=mark + TEMPLATE)
    ids = list(engine.requests[0].prompt.token_ids)
    [special] = engine.tokenizer.encode(mark, False)
    assert ids[0] == special
    assert ids.count(special) == 1


def test_what_the_operator_gives_to_every_request(open_http) -> None:
    http = open_http(enable_force_include_usage=True, return_tokens_as_token_ids=True)
    chunks = http.events(PATH, messages=ASK)
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    asked = {"stream_options": {"include_usage": False, "continuous_usage_stats": True}}
    assert http.events("/v1/completions", prompt="x", **asked)[-1]["usage"]["prompt_tokens"] == 1
    whole = http.post(PATH, messages=ASK, logprobs=True).json()
    tokens = [entry["token"] for entry in whole["choices"][0]["logprobs"]["content"]]
    assert all(token.startswith("token_id:") for token in tokens)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url", "file"])
def test_what_is_no_text_is_refused_by_name(http, kind) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": kind, kind: {"url": "x"}}]
    response = http.post(PATH, messages=[{"role": "user", "content": parts}])
    assert response.status_code == 400
    told = response.json()["error"]
    assert told["param"].startswith("messages[0].content[1]")
    assert f"a part of type {kind} is not served" in told["message"]


def test_log_probabilities_of_named_tokens(http, engine) -> None:
    asked = {"messages": ASK, "logprobs": True, "logprob_token_ids": [7, 5]}
    assert http.post(PATH, **asked).status_code == 200
    params = engine.requests[0].params
    assert (params.logprobs, params.logprob_token_ids) == (0, (7, 5))
    for more in (
        {"logprob_token_ids": [-1]},
        {"logprob_token_ids": [1] * 257},
    ):
        error = http.post(PATH, **asked | more).json()["error"]
        assert error["param"] == "logprob_token_ids"
