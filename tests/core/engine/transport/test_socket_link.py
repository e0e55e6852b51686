"""The front end's end of the socket: long messages, and engines that are none."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from hotshoe import AsyncEngine, SamplingParams, TokensPrompt
from hotshoe.engine.transport import socket_link
from hotshoe.engine.wire.connection import Connection
from hotshoe.engine.wire.messages import Dead, Heartbeat, Side, State, Welcome, WireError, encode
from hotshoe.errors import ConfigError, EngineDeadError, EngineError
from hotshoe.text.output_processor import RequestUpdate


def generate_long(engine: AsyncEngine) -> AsyncIterator[RequestUpdate]:
    prompt = TokensPrompt([70_000] * 900_000)
    return engine.generate(prompt, SamplingParams(max_tokens=2, detokenize=False))


def test_long_prompts_pass(served: Path) -> None:
    engine = AsyncEngine.connect(served)

    async def main() -> list[int]:
        stream = generate_long(engine)
        return [t async for update in stream for t in update.sequences[0].new_token_ids]

    assert asyncio.run(main()) == [70_001, 70_002]
    engine.close()


def test_a_long_prompt_that_is_not_read_yet_blocks_nobody(served: Path, path: Path) -> None:
    genuine = AsyncEngine.connect(served)
    reads = threading.Event()
    with answering(path, encode(Welcome(Side(), genuine.info)), reads=reads) as other:
        engine = AsyncEngine.connect(other)

        async def main() -> None:
            sending = asyncio.ensure_future(anext(generate_long(engine)))
            while not engine._link._connection.has_backlog:
                await asyncio.sleep(0.01)
            reads.set()  # and leaves, having read it
            with pytest.raises(EngineDeadError):
                await sending

        asyncio.run(asyncio.wait_for(main(), 60))
        engine.close()
    genuine.close()


@contextmanager
def answering(path: Path, *messages: bytes, reads: threading.Event | None = None) -> Iterator[Path]:
    """Listen beside an engine's socket; say this to the one who comes, and wait for its end.

    With `reads` nothing is read before it is set, and a message ends it too.
    """
    other = path.with_name("o.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(other))
        listener.listen()

        def serve() -> None:
            connection = Connection(listener.accept()[0])
            connection.fetch(60)
            for message in messages:
                connection.send(message)
            if reads is not None:
                reads.wait(60)
            connection.fetch(60)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield other
        thread.join()


@pytest.mark.parametrize("answer", ["welcome", "nonsense", "dead"])
def test_engines_of_another_version_are_named(served: Path, path: Path, answer: str) -> None:
    genuine = AsyncEngine.connect(served)
    answers = {
        "welcome": encode(Welcome(Side("9.9", 99), genuine.info)),
        "nonsense": msgspec.msgpack.encode({"hello": 1}),
        "dead": encode(Dead(WireError("ConfigError", "too old"))),
    }
    with (
        answering(path, answers[answer]) as other,
        pytest.raises(ConfigError, match=r"9\.9|another language|too old"),
    ):
        AsyncEngine.connect(other)
    genuine.close()


def test_news_for_everybody_may_come_before_the_welcome(served: Path, path: Path) -> None:
    genuine = AsyncEngine.connect(served)
    welcome = encode(Welcome(Side(), genuine.info))
    news = [encode(Heartbeat(7, 0.0)), encode(State(room=1)), welcome, encode(State(room=5))]
    with answering(path, *news) as other:
        engine = AsyncEngine.connect(other)
        engine.close()
    genuine.close()


def test_an_engine_that_never_welcomes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_link, "CONNECT_S", 0.3)
    with (
        answering(path, encode(Heartbeat(7, 0.0))) as other,
        pytest.raises(EngineError, match="does not answer"),
    ):
        AsyncEngine.connect(other)


def test_an_engine_that_turns_to_nonsense_is_lost(served: Path, path: Path) -> None:
    genuine = AsyncEngine.connect(served)
    with answering(path, encode(Welcome(Side(), genuine.info)), b"nonsense") as other:
        engine = AsyncEngine.connect(other)

        async def lost() -> None:
            while True:
                await engine.check_health()
                await asyncio.sleep(0.01)

        with pytest.raises(EngineDeadError, match="another language"):
            asyncio.run(asyncio.wait_for(lost(), 60))
        engine.close()
    genuine.close()
