"""Clients that people use, as they use them, against the bundled model."""

import asyncio
import queue
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

SUM = "What is 2 + 3?"
ANN = "Give me JSON with name and age: Ann is 5 years old."
WEATHER = "What is the weather in Paris?"
#: No server asks for one; some clients insist.
KEY = "none"


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"It is sunny in {city}."


# openai and anthropic


def test_openai(url: str) -> None:
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        messages: Any = [{"role": "user", "content": SUM}]
        assert (
            "5"
            in client.chat.completions.create(model="demo", messages=messages)
            .choices[0]
            .message.content
        )
        chunks = client.chat.completions.create(model="demo", messages=messages, stream=True)
        assert "5" in "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        people: Any = [{"role": "user", "content": ANN}]
        parsed = client.chat.completions.parse(
            model="demo", messages=people, response_format=Person
        )
        assert parsed.choices[0].message.parsed is not None
        assert "5" in client.responses.create(model="demo", input=SUM).output_text
        with client.responses.stream(model="demo", input=SUM) as stream:
            assert "5" in stream.get_final_response().output_text
        assert client.responses.parse(model="demo", input=ANN, text_format=Person).output_parsed
        assert client.completions.create(model="demo", prompt="Once upon a").choices[0].text


def test_openai_asynchronous(url: str) -> None:
    import openai

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
            messages: Any = [{"role": "user", "content": SUM}]
            calls = [
                client.chat.completions.create(model="demo", messages=messages) for _ in "abcd"
            ]
            return [found.choices[0].message.content for found in await asyncio.gather(*calls)]

    answers = asyncio.run(ask())
    assert len(answers) == 4 and all("5" in answer for answer in answers)


def test_anthropic(url: str) -> None:
    import anthropic

    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        ask: Any = {
            "model": "demo",
            "max_tokens": 40,
            "messages": [{"role": "user", "content": SUM}],
        }
        assert "5" in client.messages.create(**ask).content[0].text
        with client.messages.stream(**ask) as stream:
            assert "5" in stream.get_final_text()
        assert client.messages.count_tokens(model="demo", messages=ask["messages"]).input_tokens > 5


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """Return a directory with what JavaScript imports."""
    packages = Path(sys.prefix) / "node_modules"
    if not packages.is_dir():
        pytest.skip("the packages of JavaScript are not installed: there was no npm")
    (tmp_path / "node_modules").symlink_to(packages)
    for name in ("javascript.mjs", "page.html", "assert.mjs"):
        shutil.copy(Path(__file__).with_name(name), tmp_path)
    return tmp_path


def test_javascript(url: str, scripts: Path) -> None:
    command = ["node", scripts / "javascript.mjs", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_javascript_in_a_browser(url: str, scripts: Path) -> None:
    found = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    browser = next((path for path in found if path), None)
    if browser is None:
        pytest.skip("Chromium is not installed")
    bundle = ("--bundle", "--format=esm", "--alias:node:assert/strict=./assert.mjs")
    esbuild = scripts / "node_modules/.bin/esbuild"
    command = [esbuild, "javascript.mjs", *bundle, "--outfile=bundle.mjs", "--log-level=error"]
    subprocess.run(command, cwd=scripts, timeout=300, check=True)
    reports: queue.Queue[str] = queue.Queue()

    class Page(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            reports.put(self.rfile.read(int(self.headers["content-length"])).decode())
            self.send_response(204)
            self.end_headers()

    pages = ThreadingHTTPServer(("127.0.0.1", 0), partial(Page, directory=str(scripts)))
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    page = f"http://127.0.0.1:{pages.server_port}/page.html?url={url}"
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
    process = subprocess.Popen(
        [browser, *flags, f"--user-data-dir={scripts / 'profile'}", page], stderr=subprocess.DEVNULL
    )
    try:
        assert reports.get(timeout=300) == "right"
    finally:
        process.terminate()
        process.wait(60)
        pages.shutdown()
        pages.server_close()


# LangChain


def test_langchain_openai(url: str) -> None:
    from langchain_openai import ChatOpenAI

    given: Any = {"model": "demo", "base_url": f"{url}/v1", "api_key": KEY, "max_tokens": 60}
    model = ChatOpenAI(**given)
    assert "5" in model.invoke(SUM).content
    assert [answer.content for answer in model.batch([SUM, SUM])] == [model.invoke(SUM).content] * 2
    for method in ("json_schema", "function_calling", "json_mode"):
        assert isinstance(model.with_structured_output(Person, method=method).invoke(ANN), Person)
    found = model.invoke(SUM, logprobs=True, top_logprobs=2).response_metadata["logprobs"]
    assert len(found["content"][0]["top_logprobs"]) == 2
    responses = ChatOpenAI(**given, use_responses_api=True)
    assert "5" in responses.invoke(SUM).text
    assert len(list(responses.stream(SUM))) > 1


def test_langchain_anthropic(url: str) -> None:
    from langchain_anthropic import ChatAnthropic

    model = ChatAnthropic(model="demo", base_url=url, api_key=KEY, max_tokens=60)
    assert "5" in model.invoke(SUM).text
    assert "5" in "".join(chunk.text for chunk in model.stream(SUM))
    assert isinstance(model.with_structured_output(Person).invoke(ANN), Person)
    [call] = model.bind_tools([get_weather]).invoke(WEATHER).tool_calls
    assert call["name"] == "get_weather"


def test_langchain_ollama(url: str) -> None:
    from langchain_ollama import ChatOllama, OllamaLLM

    model = ChatOllama(model="demo", base_url=url, num_predict=60)
    assert "5" in model.invoke(SUM).content
    assert OllamaLLM(model="demo", base_url=url, num_predict=10).invoke("Once upon a")
    [call] = model.bind_tools([get_weather]).invoke(WEATHER).tool_calls
    assert call["name"] == "get_weather"


# Others


def test_ollama(url: str) -> None:
    import ollama

    client = ollama.Client(host=url)
    messages = [{"role": "user", "content": SUM}]
    assert "5" in client.chat("demo", messages).message.content
    parts = client.chat("demo", messages, stream=True)
    assert "5" in "".join(part.message.content for part in parts)
    assert [model.model for model in client.list().models] == ["demo"]
    assert client.show("demo").modelinfo


def test_llama_index(url: str) -> None:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        model="demo",
        api_base=f"{url}/v1",
        api_key=KEY,
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=2048,
        max_tokens=60,
    )
    ask = [ChatMessage(role="user", content=SUM)]
    assert "5" in str(model.chat(ask))
    assert "5" in "".join(chunk.delta or "" for chunk in model.stream_chat(ask))
    assert model.complete("Once upon a").text
    answer = model.chat_with_tools([FunctionTool.from_defaults(get_weather)], user_msg=WEATHER)
    [call] = model.get_tool_calls_from_response(answer)
    assert call.tool_name == "get_weather"


@pytest.mark.parametrize(
    ("provider", "path"),
    [
        ("openai/demo", "/v1"),
        ("hosted_vllm/demo", "/v1"),
        ("anthropic/demo", ""),
        ("ollama_chat/demo", ""),
    ],
)
def test_litellm(url: str, provider: str, path: str) -> None:
    import litellm

    ask: Any = {"model": provider, "api_base": url + path, "api_key": KEY, "max_tokens": 40}
    messages = [{"role": "user", "content": SUM}]
    assert "5" in litellm.completion(**ask, messages=messages).choices[0].message.content
    chunks = litellm.completion(**ask, messages=messages, stream=True)
    assert "5" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_litellm_knows_a_prompt_that_is_too_long(url: str) -> None:
    import litellm

    messages = [{"role": "user", "content": "hello " * 5000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion("hosted_vllm/demo", messages, api_base=f"{url}/v1", api_key=KEY)


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "MD_JSON"])
def test_instructor(url: str, mode: str) -> None:
    import instructor
    import openai

    plain = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY)
    client = instructor.from_openai(plain, mode=getattr(instructor.Mode, mode))
    messages: Any = [{"role": "user", "content": ANN}]
    ask: Any = {"model": "demo", "response_model": Person, "messages": messages}
    assert isinstance(client.chat.completions.create(**ask, max_retries=2), Person)
    if mode == "TOOLS":
        assert list(client.chat.completions.create_partial(**ask))[-1].age is not None


@pytest.mark.parametrize("kind", ["chat", "responses", "anthropic"])
def test_pydantic_ai(url: str, kind: str) -> None:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    ours = OpenAIProvider(base_url=f"{url}/v1", api_key=KEY)
    theirs = AnthropicProvider(api_key=KEY, base_url=url)
    model: Any = {
        "chat": lambda: OpenAIChatModel("demo", provider=ours),
        "responses": lambda: OpenAIResponsesModel("demo", provider=ours),
        "anthropic": lambda: AnthropicModel("demo", provider=theirs),
    }[kind]()
    settings: Any = {"max_tokens": 100, "temperature": 0}
    assert "5" in Agent(model, model_settings=settings).run_sync(SUM).output
    wanted: list[Any] = [Person] if kind == "anthropic" else [Person, NativeOutput(Person)]
    for form in wanted:
        agent = Agent(model, output_type=form, model_settings=settings)
        assert isinstance(agent.run_sync(ANN).output, Person)
    called: list[str] = []

    def weather(city: str) -> str:
        """Tell the weather of a city."""
        called.append(city)
        return get_weather(city)

    assert Agent(model, tools=[weather], model_settings=settings).run_sync(WEATHER).output
    assert called
