"""The page in headless Chromium, against a server that answers from a script."""

import json
import time
from pathlib import Path

import pytest

from hotshoe.engine.client import EngineStats
from hotshoe_observability import table
from hotshoe_observability.counts import Counts
from hotshoe_observability.exposition import HOTSHOE, VLLM, Snapshot, expose

INFO = {
    "version": "0.1.0",
    "models": ["demo"],
    "config": {"platform": "null", "dtype": "float32", "block_size": 16},
    "max_model_len": 2048,
    "vocab_size": 8192,
    "num_blocks": 512,
    "facts": {"name": "Abacus", "arch": "wood", "memory_bytes": 2**30, "compute_units": 10},
    "changes": [{"field": "block_size", "value": 16, "reason": "it divides evenly"}],
    "decisions": [
        {
            "slot": "attention",
            "spec": "heads=<b>8</b>",
            "chosen": "beads",
            "native": True,
            "reason": "quick fingers",
            "others": {"reference": "score 0", "fire": "refused: it is made of wood"},
        },
        {
            "slot": "linear",
            "spec": "",
            "chosen": "reference",
            "native": False,
            "reason": "",
            "others": {},
        },
    ],
    "startup_s": {"load weights": 1.5, "allocate cache": 0.25},
    "memory_bytes": {"weights": 2**20, "kv_cache": 2**21},
    "tool_call_parser": "hermes",
    "reasoning_parser": None,
    "num_restarts": 0,
}


def delta(finish: str | None = None, **values: object) -> dict:
    return {"choices": [{"index": 0, "delta": values, "finish_reason": finish}]}


def answer(*texts: str, finish: str = "stop") -> list:
    usage = {"prompt_tokens": 5, "completion_tokens": len(texts)}
    body = [delta(content=text) for text in texts]
    return [
        delta(role="assistant"),
        *body,
        delta(finish),
        {"choices": [], "usage": usage},
        "[DONE]",
    ]


def metrics(counts: Counts | None = None, names=(HOTSHOE,), **stats: object) -> str:
    from types import SimpleNamespace

    config = SimpleNamespace(platform="null", dtype="float32", quantization=None)
    config.kv_cache_dtype, config.enable_prefix_caching = "bfloat16", True
    config.enable_lora, config.max_loras = True, 4
    info = SimpleNamespace(config=config, num_blocks=10, block_size=16)
    found = EngineStats(**{"num_blocks": 10, **stats})
    return expose([Snapshot("demo", info, found, 0, counts or Counts())], names)[0].decode()


@pytest.fixture
def ready(page, server):
    """The page, loaded from a server with metrics and with a model."""
    server.metrics = metrics()
    server.info = INFO

    def load(**window):
        page.open(server.url, **window)
        page.wait("document.querySelectorAll('#model option').length == 2")
        return page

    return load


def ask(page, text: str) -> None:
    page.run("document.getElementById('prompt').focus()")
    page.type(text)
    page.press("Enter")


def wait_for_answer(page) -> None:
    page.wait("!document.getElementById('send').hidden")


def texts(page, selector: str) -> list[str]:
    code = f"[...document.querySelectorAll({json.dumps(selector)})].map((n) => n.innerText)"
    return page.run(code)


def test_a_conversation(ready, server) -> None:
    page = ready()
    server.events = answer("Hello", ", ", "you", "!")
    ask(page, "Hi there")
    wait_for_answer(page)
    assert texts(page, ".message > .text") == ["Hi there", "Hello, you!"]
    assert "4 tokens" in texts(page, ".message.assistant .about")[0]
    server.events = answer("Fine.")
    ask(page, "How are you?")
    wait_for_answer(page)
    sent = server.seen[-1]
    assert [m["content"] for m in sent["messages"]] == ["Hi there", "Hello, you!", "How are you?"]
    assert sent["stream"] is True
    assert sent["model"] == "demo"


def test_settings_are_sent(ready, server) -> None:
    page = ready()
    server.events = answer("{}")
    page.run("""(() => {
        const set = (id, value) => {
            const input = document.getElementById(id);
            input.value = value;
            input.dispatchEvent(new Event("input", { bubbles: true }));
            input.dispatchEvent(new Event("change", { bubbles: true }));
        };
        set("model", "other"); set("system", "Be brief."); set("temperature", "0.25");
        set("top_p", "0.9"); set("max_tokens", "33"); set("seed", "7");
        set("format", "json_schema");
        set("schema", '{"type": "object"}');
    })()""")
    assert texts(page, "#temperature-value") == ["0.25"]
    ask(page, "Go")
    wait_for_answer(page)
    sent = server.seen[-1]
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    wanted = {"model": "other", "temperature": 0.25, "top_p": 0.9, "max_tokens": 33, "seed": 7}
    assert wanted.items() <= sent.items()
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_tokens", "0", "Most tokens must be a whole number from 1"),
        ("seed", "1.5", "Seed must be a whole number"),
        ("schema", "{", "The JSON schema: not valid JSON"),
    ],
)
def test_bad_settings_are_named_and_not_sent(ready, server, field, value, message) -> None:
    page = ready()
    if field == "schema":
        page.run("document.getElementById('format').value = 'json_schema'")
    page.run(f"document.getElementById('{field}').value = '{value}'")
    ask(page, "Go")
    page.wait("document.getElementById('notice').textContent")
    assert message in texts(page, "#notice")[0]
    assert server.seen == []


def test_what_models_write_is_text_and_never_markup(ready, server) -> None:
    page = ready()
    evil = (
        "<img src=x onerror=alert(1)> `<b>` **<i>**\n```html\n<script>boom()</script>\n```\nafter"
    )
    server.events = answer(*evil)
    ask(page, "<u>me</u>")
    wait_for_answer(page)
    assert texts(page, ".message.user > .text") == ["<u>me</u>"]
    assert texts(page, ".message.assistant code") == ["<b>"]
    assert texts(page, ".message.assistant strong") == ["<i>"]
    assert texts(page, ".message.assistant pre") == ["<script>boom()</script>"]
    assert (
        page.run("document.querySelectorAll('.log img, .log b, .log script, .log u').length") == 0
    )


def test_reasoning(ready, server) -> None:
    page = ready()
    server.events = [
        delta(reasoning_content="Let me "),
        delta(reasoning_content="see."),
        *answer("42"),
    ]
    ask(page, "?")
    wait_for_answer(page)
    assert texts(page, ".message.assistant > .text") == ["42"]
    assert page.run("document.querySelector('details .text').textContent") == "Let me see."


def test_stopping(ready, server) -> None:
    page = ready()
    server.events = answer(*["word "] * 2000)
    server.pause_s = 0.02
    ask(page, "Talk")
    page.wait("document.querySelector('.message.assistant > .text').textContent.length > 20")
    assert page.run("document.getElementById('send').hidden") is True
    page.press("Escape")
    wait_for_answer(page)
    assert "ended by you" in texts(page, ".message.assistant .about")[0]
    assert texts(page, ".fault") == []
    deadline = time.monotonic() + 60
    while not server.gone and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.gone == 1  # the server was told


def test_stop_button_and_answering_again(ready, server) -> None:
    page = ready()
    server.events, server.pause_s = answer(*["word "] * 2000), 0.02
    ask(page, "Talk")
    page.wait("document.querySelector('.message.assistant > .text').textContent.length > 5")
    page.run("document.getElementById('stop').click()")
    wait_for_answer(page)
    server.events, server.pause_s = answer("Better."), 0.0
    page.run("document.getElementById('again').click()")
    page.wait("document.querySelector('.message.assistant .about').textContent.includes('1 token')")
    assert texts(page, ".message > .text") == ["Talk", "Better."]
    assert len(server.seen[-1]["messages"]) == 1
    page.run("document.getElementById('clear').click()")
    assert texts(page, ".message") == []
    assert page.run("document.getElementById('welcome').hidden") is False


def test_tool_calls(ready, server) -> None:
    page = ready()
    page.run("document.getElementById('use-tools').click()")
    assert page.run("document.getElementById('tools-field').hidden") is False
    first = {"index": 0, "id": "c1", "function": {"name": "get_weather", "arguments": ""}}
    more = [{"index": 0, "function": {"arguments": part}} for part in ('{"city"', ': "Rome"}')]
    calls = [delta(tool_calls=[part]) for part in (first, *more)]
    server.events = [*calls, delta("tool_calls"), "[DONE]"]
    ask(page, "Weather in Rome?")
    wait_for_answer(page)
    assert server.seen[-1]["tools"][0]["function"]["name"] == "get_weather"
    assert texts(page, ".call header") == ["calls get_weather"]
    assert texts(page, ".call pre") == ['{\n  "city": "Rome"\n}']
    server.events = answer("Sunny.")
    page.run("document.querySelector('.call input').focus()")
    page.type('{"sky": "clear"}')
    page.press("Enter")
    page.wait("document.querySelectorAll('.message.assistant').length == 2")
    wait_for_answer(page)
    _asked, called, result = server.seen[-1]["messages"]
    assert called["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'
    assert result == {"role": "tool", "tool_call_id": "c1", "content": '{"sky": "clear"}'}
    assert texts(page, ".message > .text")[-1] == "Sunny."


def test_json_is_laid_out(ready, server) -> None:
    page = ready()
    page.run("document.getElementById('format').value = 'json_object'")
    server.events = answer('{"a":', "[1,2]}")
    ask(page, "JSON")
    wait_for_answer(page)
    assert json.loads(texts(page, ".message.assistant pre")[0]) == {"a": [1, 2]}
    assert server.seen[-1]["response_format"] == {"type": "json_object"}


def test_faults_are_shown(ready, server) -> None:
    page = ready()
    server.events = [delta(content="Half"), {"error": {"message": "the engine has stopped"}}]
    ask(page, "Go")
    wait_for_answer(page)
    assert texts(page, ".fault") == ["the engine has stopped"]
    server.events = [delta(content="Half")]
    ask(page, "Again")
    wait_for_answer(page)
    assert texts(page, ".fault")[-1] == "the answer broke off"


def test_gauges(ready, server) -> None:
    counts = Counts()
    for _ in range(10):
        counts.observe(table.TTFT, 0.06)
        counts.observe(table.ITL, 0.004)
    server.metrics = metrics(counts, num_running=7, num_waiting=2, num_used_blocks=4)
    page = ready()
    page.wait("document.querySelectorAll('.gauge').length == 6")
    values = dict(zip(texts(page, ".gauge .name"), texts(page, ".gauge .value"), strict=True))
    assert values["Running"] == "7"
    assert values["Waiting"] == "2"
    assert values["KV cache in use"].startswith("40.0")
    assert values["Time to first token"].startswith("63 ms")  # halfway between 50 and 75
    assert values["Between tokens"].startswith("3.8 ms")
    assert texts(page, "#health") == ["ready"]
    server.metrics = metrics(counts, num_generated_tokens=5000, is_paused=True)
    page.wait("document.getElementById('health').textContent == 'paused'")
    page.wait("parseInt(document.querySelector('.gauge .value').innerText.replace(',', '')) > 1000")


def test_gauges_do_not_mind_the_other_names(ready, server) -> None:
    page = ready()
    server.metrics = metrics(names=(HOTSHOE, VLLM), num_running=9)
    page.wait("[...document.querySelectorAll('.gauge .value')].some((n) => n.innerText == '9')")


def test_without_metrics(page, server) -> None:
    page.open(server.url)
    page.wait("document.getElementById('health').textContent == 'running'")
    assert "hotshoe-observability" in texts(page, "#live-note")[0]
    page.open("about:blank")
    assert all("/metrics" in complaint for complaint in page.complaints)
    page.complaints.clear()


def test_the_platform(ready, server) -> None:
    page = ready()
    page.run("document.getElementById('tab-platform').click()")
    page.wait("document.querySelectorAll('#platform .card').length == 6")
    shown = texts(page, "#platform")[0]
    for part in ("Abacus", "1,024 MiB", "quick fingers", "fire: refused: it is made of wood"):
        assert part in shown
    assert "heads=<b>8</b>" in shown
    assert texts(page, ".tag.warn") == ["not native"]
    assert "it divides evenly" in shown
    assert "Start-up, 1.75 s" in shown


def test_tabs_by_keyboard(ready) -> None:
    page = ready()
    page.run("document.getElementById('tab-chat').focus()")
    page.press("ArrowRight")
    assert page.run("document.activeElement.id") == "tab-platform"
    assert page.run("document.getElementById('view-chat').hidden") is True
    page.press("ArrowLeft")
    assert page.run("document.getElementById('view-chat').hidden") is False


def test_everything_is_reached_by_tab_and_has_a_name(ready) -> None:
    page = ready()
    count = page.run(
        "[...document.querySelectorAll('button, input, select, textarea, [tabindex]')]"
        ".filter((n) => n.checkVisibility() && n.tabIndex >= 0 && !n.disabled).length"
    )
    seen = set()
    page.run("document.body.focus()")
    for _ in range(count + 3):
        page.press("Tab")
        seen.add(page.run("document.activeElement.id || document.activeElement.textContent"))
    assert len(seen) >= count
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = ("button", "textbox", "combobox", "slider", "spinbutton", "checkbox", "tab", "region")
    controls = [n for n in nodes if not n["ignored"] and n["role"]["value"] in roles]
    assert len(controls) > 12
    assert [n for n in controls if not n.get("name", {}).get("value")] == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out(ready, server, dark: bool) -> None:
    """Contrast of text against what is behind it, by the formula of WCAG 2: at least 4.5."""
    page = ready(dark=dark)
    server.events = answer("Some `code` and **more**.")
    ask(page, "Hello")
    wait_for_answer(page)
    worst = page.run("""(() => {
        const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
        const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255;
            return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const behind = (node) => { for (; node; node = node.parentElement) {
            const c = numbers(getComputedStyle(node).backgroundColor);
            if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
        const found = [];
        for (const node of document.querySelectorAll("body *")) {
            const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
            const unseen = !node.checkVisibility() || node.disabled;
            if (!own || unseen || node.closest(".hidden, .skip")) continue;
            const [a, b] = [light(numbers(getComputedStyle(node).color)), light(behind(node))];
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            found.push([ratio, node.outerHTML.slice(0, 90)]);
        }
        return found.sort((a, b) => a[0] - b[0])[0];
    })()""")
    assert worst[0] >= 4.5, worst


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_is_wider_than_the_window(ready, server, width: int) -> None:
    page = ready(width=width, height=800)
    server.events = answer("x" * 300, "\n```\n", "y" * 300, "\n```")
    ask(page, "z" * 300)
    wait_for_answer(page)
    assert page.run("document.documentElement.scrollWidth") <= width
    page.run("document.getElementById('tab-platform').click()")
    page.wait("document.querySelectorAll('#platform .card').length == 6")
    assert page.run("document.documentElement.scrollWidth") <= width


def test_colours(ready) -> None:
    page = ready(dark=True)
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.run(ground)
    page.run("document.getElementById('theme-button').click()")
    light = page.run(ground)
    assert dark != light
    page.run("document.getElementById('theme-button').click()")
    assert page.run(ground) == dark
    assert texts(page, "#theme-button") == ["Colours: dark"]


def test_the_key_stays_in_memory(page, server) -> None:
    server.key = "sesame-4242"
    server.metrics = metrics()
    page.open(server.url)
    page.wait("document.getElementById('key-dialog').open")  # the server wants one
    page.run("document.getElementById('key').focus()")
    page.type(server.key)
    page.press("Enter")
    page.wait("document.querySelectorAll('#model option').length == 2")
    page.wait("document.getElementById('health').textContent == 'ready'")
    server.events = answer("Welcome.")
    ask(page, "Hello")
    wait_for_answer(page)
    assert texts(page, ".message.assistant > .text") == ["Welcome."]
    assert page.run("document.getElementById('key').value") == ""
    assert page.run("localStorage.length + sessionStorage.length + document.cookie.length") == 0
    page.open(server.url)
    page.wait("document.getElementById('key-dialog').open")  # forgotten
    page.open("about:blank")
    assert all("401" in complaint for complaint in page.complaints)
    page.complaints.clear()


def test_the_policy_is_enforced(ready) -> None:
    page = ready()
    page.run(
        "void document.body.append(Object.assign(document.createElement('script'), "
        "{ textContent: 'window.inlined = true' }))"
    )
    assert page.run("window.inlined") is None
    page.run("fetch('http://127.0.0.1:9/').catch(() => 0)")
    deadline = time.monotonic() + 60
    while len(page.complaints) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(page.complaints) >= 2
    assert all("Content Security Policy" in complaint for complaint in page.complaints)
    page.complaints.clear()


def test_pictures(ready, server, tmp_path: Path) -> None:
    """A picture can be taken in every palette and width; it is not one flat colour."""
    for width, dark in ((1280, False), (390, True)):
        page = ready(width=width, dark=dark)
        path = tmp_path / f"{width}.png"
        page.screenshot(path)
        assert path.stat().st_size > 8000
