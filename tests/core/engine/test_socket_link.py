"""The front end's end of the socket: long messages, and engines that are none."""

import asyncio
import socket
import threading
import time
from pathlib import Path

import msgspec
import pytest

from hotshoe import AsyncEngine, SamplingParams, TokensPrompt
from hotshoe.engine.connection import Connection
from hotshoe.engine.messages import Dead, Side, Welcome, WireError, encode
from hotshoe.errors import ConfigError, EngineDeadError


def test_long_prompts_pass_and_block_nobody(served: Path) -> None:
    engine = AsyncEngine.connect(served)

    async def main() -> float:
        worst, stop = 0.0, False

        async def watch() -> None:
            nonlocal worst
            while not stop:
                begin = time.monotonic()
                await asyncio.sleep(0.001)
                worst = max(worst, time.monotonic() - begin)

        watching = asyncio.create_task(watch())
        prompt = TokensPrompt([70_000] * 900_000)
        stream = engine.generate(prompt, SamplingParams(max_tokens=2, detokenize=False))
        found = [t async for update in stream for t in update.sequences[0].new_token_ids]
        assert found == [70_001, 70_002]
        stop = True
        await watching
        return worst

    assert asyncio.run(main()) < 1.0
    engine.close()


@pytest.mark.parametrize("answer", ["welcome", "nonsense", "dead"])
def test_engines_of_another_version_are_named(served: Path, path: Path, answer: str) -> None:
    genuine = AsyncEngine.connect(served)
    other = path.with_name("o.sock")
    answers = {
        "welcome": encode(Welcome(Side("9.9", 99), genuine.info)),
        "nonsense": msgspec.msgpack.encode({"hello": 1}),
        "dead": encode(Dead(WireError("ConfigError", "too old"))),
    }
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(other))
        listener.listen()

        def serve() -> None:
            connection = Connection(listener.accept()[0])
            connection.fetch(60)
            connection.send(answers[answer])
            connection.fetch(60)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ConfigError, match=r"9\.9|another language|too old"):
            AsyncEngine.connect(other)
        thread.join()
    genuine.close()


def test_an_engine_that_turns_to_nonsense_is_lost(served: Path, path: Path) -> None:
    genuine = AsyncEngine.connect(served)
    other = path.with_name("o.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(other))
        listener.listen()

        def serve() -> None:
            connection = Connection(listener.accept()[0])
            connection.fetch(60)
            connection.send(encode(Welcome(Side(), genuine.info)))
            connection.send(b"nonsense")
            connection.fetch(60)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        engine = AsyncEngine.connect(other)

        async def lost() -> None:
            while True:
                await engine.check_health()
                await asyncio.sleep(0.01)

        with pytest.raises(EngineDeadError, match="another language"):
            asyncio.run(asyncio.wait_for(lost(), 60))
        thread.join()
        engine.close()
    genuine.close()
