"""`hotshoe chat`: turns given, turns read, tools, and a conversation that grows too long."""

import io
import json
from pathlib import Path

import pytest

from hotshoe.cli.chat import RESET
from hotshoe.engine.api.inputs import InputProcessor


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list, object]]:
    """Every conversation that was rendered, with its tools."""
    calls: list[tuple[list, object]] = []
    plain = InputProcessor.render_chat

    def render_chat(self, messages, tools=None):
        calls.append(([dict(m) for m in messages], tools))
        return plain(self, messages, tools)

    monkeypatch.setattr(InputProcessor, "render_chat", render_chat)
    return calls


def roles(conversation: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in conversation]


def test_every_turn_sees_the_answers_before_it(hotshoe, null, seen) -> None:
    ran = hotshoe("chat", *null, "--system", "S", "-p", "A", "B", "--max-tokens", "1", "-q")
    assert ran.code == 0
    assert roles(seen[0][0]) == [("system", "S"), ("user", "A")]
    answer = roles(seen[1][0])[2]
    assert answer[0] == "assistant"
    assert ran.out.startswith(answer[1])
    assert roles(seen[1][0])[3] == ("user", "B")


def test_turns_come_from_standard_input(hotshoe, null, seen, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"A\n{RESET}\nB\n\nnever read\n"))
    assert hotshoe("chat", *null, "-q", "--max-tokens", "1").code == 0
    assert [roles(conversation) for conversation, _ in seen] == [[("user", "A")], [("user", "B")]]


def test_json_prints_a_document_for_each_turn(hotshoe, null) -> None:
    ran = hotshoe("chat", *null, "-q", "--json", "-p", "A", "B", "--max-tokens", "2")
    documents = [json.loads(line) for line in ran.out.splitlines()]
    assert len(documents) == 2
    assert all(len(d["requests"][0]["outputs"][0]["token_ids"]) == 2 for d in documents)


def test_tools_reach_the_template(hotshoe, null, seen, tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(tools))
    assert hotshoe("chat", *null, "-q", "--tools", path, "-p", "A", "--max-tokens", "1").code == 0
    assert seen[0][1] == tools


@pytest.mark.parametrize("text", ["{", "{}", "[1]"])
def test_bad_tools_are_refused(hotshoe, null, tmp_path: Path, text: str) -> None:
    path = tmp_path / "tools.json"
    path.write_text(text)
    ran = hotshoe("chat", *null, "--tools", path, "-p", "A")
    assert ran.code == 2
    assert str(path) in ran.err


def test_a_conversation_that_is_too_long_ends_a_script(hotshoe, null) -> None:
    ran = hotshoe("chat", *null, "-q", "-p", "A" * 80)
    assert ran.code == 2
    assert "maximum context length is 64 tokens" in ran.err


def test_a_conversation_that_is_too_long_does_not_end_a_session(
    hotshoe, null, seen, monkeypatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    lines = iter(["A" * 80, "B", ""])
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    ran = hotshoe("chat", *null, "-q", "--max-tokens", "1")
    assert ran.code == 0
    assert f"({RESET} starts anew)" in ran.err
    assert roles(seen[-1][0]) == [("user", "B")]
