"""`hotshoe run-batch`: what a file asks is answered as the server would, once."""

import json
from pathlib import Path
from typing import Any

import pytest

from hotshoe.cli.main import main
from hotshoe.errors import EngineDeadError, QueueFullError
from hotshoe_server import batch

ASK = {"messages": [{"role": "user", "content": "Say"}]}


def row(name: str, url: str = "/v1/chat/completions", **body: Any) -> str:
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body or ASK})


@pytest.fixture
def run(engine, monkeypatch, tmp_path: Path):
    """Run a batch over the scripted engine; return the exit code."""
    monkeypatch.setattr(batch, "load", lambda config, transport, tell: engine)
    monkeypatch.setattr(batch.asyncio, "sleep", immediately(batch.asyncio.sleep))

    def call(*rows: str, concurrency: int = 2) -> int:
        (tmp_path / "in").write_text("\n".join(rows) + "\n")
        files = ("-i", str(tmp_path / "in"), "-o", str(tmp_path / "out"))
        return main(["run-batch", "demo", *files, "--max-concurrency", str(concurrency), "-q"])

    call.answers = lambda: [json.loads(x) for x in (tmp_path / "out").read_text().splitlines()]
    return call


def immediately(sleep: Any) -> Any:
    return lambda seconds: sleep(0 if seconds < batch.PROGRESS_S else seconds)


def test_answers_are_those_of_the_server(run, http) -> None:
    rows = {
        "chat": row("chat"),
        "text": row("text", "/v1/completions", prompt="Say"),
        "tokens": row("tokens", "/v1/messages", **ASK, max_tokens=9),
    }
    assert run(*rows.values()) == 0
    answers = {answer["custom_id"]: answer for answer in run.answers()}
    assert answers.keys() == rows.keys()
    for name, text in rows.items():
        found, asked = answers[name], json.loads(text)
        assert found["id"].startswith("batch_req_") and found["error"] is None
        assert found["response"]["status_code"] == 200
        direct = http.post(asked["url"], **asked["body"]).json()
        changing = ("id", "created", "system_fingerprint")
        for answer in (direct, found["response"]["body"]):
            for field in changing:
                answer.pop(field, None)
        assert found["response"]["body"] == direct


def test_what_has_been_answered_is_not_asked_again(run, engine) -> None:
    assert run(row("a"), row("b")) == 0
    assert run(row("a"), row("b"), row("c")) == 0
    assert sorted(answer["custom_id"] for answer in run.answers()) == ["a", "b", "c"]
    assert len(engine.requests) == 3
    assert run(row("a"), row("b"), row("c")) == 0
    assert len(engine.requests) == 3


def test_a_request_that_fails_fails_alone(run) -> None:
    assert run(row("bad", nonsense=1, **ASK), row("good"), concurrency=1) == 1
    bad, good = run.answers()
    assert (bad["response"]["status_code"], good["response"]["status_code"]) == (400, 200)
    assert bad["response"]["body"]["error"]["param"] == "nonsense"


def test_no_more_run_at_once_than_asked(run, engine, monkeypatch) -> None:
    most = now = 0
    generate = type(engine).generate

    async def watched(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal most, now
        now += 1
        most = max(most, now)
        async for update in generate(self, *args, **options):
            yield update
        now -= 1

    monkeypatch.setattr(type(engine), "generate", watched)
    assert run(*[row(str(i)) for i in range(20)], concurrency=3) == 0
    assert most == 3


def test_a_full_queue_is_waited_for(run, engine, monkeypatch) -> None:
    errors: list[Exception | None] = [QueueFullError("too many wait", 1.0), None]
    check = type(engine).check_queue

    def full_once(self: Any) -> None:
        if errors and (error := errors.pop(0)) is not None:
            raise error
        check(self)

    monkeypatch.setattr(type(engine), "check_queue", full_once)
    assert run(row("a")) == 0


def test_an_engine_that_is_over_ends_the_run(run, engine, capsys) -> None:
    assert run(row("a")) == 0
    engine.error = EngineDeadError("gone")
    engine.is_over = True
    assert run(row("a"), row("b")) == 1
    assert "start again to go on from here" in capsys.readouterr().err
    assert [answer["custom_id"] for answer in run.answers()] == ["a"]


def test_mistakes_are_found_before_a_model_is_loaded(run, engine, capsys, monkeypatch) -> None:
    monkeypatch.setattr(batch, "load", None)
    assert run("{") == 2
    assert "line 1" in capsys.readouterr().err
