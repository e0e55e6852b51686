"""Port and link over a socket: large messages, strangers, other versions."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hotshoe import AsyncEngine, EngineConfig, SamplingParams, TokensPrompt
from hotshoe.engine.boot import boot
from hotshoe.engine.connection import Connection
from hotshoe.engine.loop import EngineLoop
from hotshoe.engine.messages import Dead, Hello, Side, Welcome, WireError, decode_news, encode
from hotshoe.engine.sockets import SocketPort
from hotshoe.errors import ConfigError, EngineDeadError

PATH_LIMIT = 100


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("s") / "e.sock"
    assert len(str(path)) < PATH_LIMIT
    return path


@pytest.fixture
def served(model_dir: Path, plugins, path: Path) -> Iterator[Path]:
    """An engine of this process behind a socket."""
    options = {"hf_overrides": {"max_position_embeddings": 1 << 20}, "max_num_seqs": 4}
    config = EngineConfig(
        model=str(model_dir), platform="null", kv_cache_memory_bytes=1 << 30, **options
    )
    booted = boot(config, plugins)
    port = SocketPort(path)
    loop = EngineLoop(booted.core, booted.info, port)

    def target() -> None:
        loop.run()
        port.close()

    thread = threading.Thread(target=target)
    thread.start()
    yield path
    loop.stop()
    thread.join(10)
    assert not thread.is_alive() and not path.exists()


def connect(path: Path) -> Connection:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    return Connection(sock)


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


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x05\0\0\0hello", b"\xff" * 4])
def test_strangers_are_sent_away(served: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(served))
        stranger.sendall(data)
        stranger.settimeout(10)
        while stranger.recv(4096):
            pass
    engine = AsyncEngine.connect(served)
    assert asyncio.run(engine.stats()).num_running == 0
    engine.close()


def test_front_ends_of_another_version_are_told(served: Path) -> None:
    connection = connect(served)
    connection.send(encode(Hello(Side("9.9", 99))))
    answer = decode_news(connection.fetch(10))
    assert isinstance(answer, Dead) and "9.9" in answer.error.message
    connection.close()


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
            connection.fetch(10)
            connection.send(answers[answer])
            connection.fetch(10)
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
            connection.fetch(10)
            connection.send(encode(Welcome(Side(), genuine.info)))
            connection.send(b"nonsense")
            connection.fetch(10)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        engine = AsyncEngine.connect(other)

        async def lost() -> None:
            while True:
                await engine.check_health()
                await asyncio.sleep(0.01)

        with pytest.raises(EngineDeadError, match="another language"):
            asyncio.run(asyncio.wait_for(lost(), 10))
        thread.join()
        engine.close()
    genuine.close()
