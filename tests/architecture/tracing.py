"""Names the files of this repository that one token passes; run by `test_path.py`, as a process.

A profile hook sees every call of every thread that is started after it. Files that only the import
of a module runs do not count, as a warm request goes first.
"""

import json
import os
import signal
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
#: Where the packages of this repository are.
HOMES = ("core/*", "plugins/*/*", "platforms/*/*", "csrc/python/*")
OPTIONS = {"model": "demo", "platform": "cpu", "max_model_len": 256, "max_num_seqs": 4}
BODY = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Say something"}],
    "max_tokens": 8,
    "ignore_eos": True,
    "stream": True,
}


class Tracer:
    """Collects the files whose functions are called while `on` is set."""

    def __init__(self) -> None:
        self.on = False
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if self.on and event == "call":
            self.files.add(frame.f_code.co_filename)

    def start(self) -> None:
        """Watch this thread, and those that it starts."""
        threading.setprofile(self)
        sys.setprofile(self)

    def own(self) -> list[str]:
        """Return the files of this repository, wherever their packages are installed."""
        return sorted(
            str((home / Path(file).relative_to(folder)).relative_to(ROOT))
            for folder, home in _installed()
            for file in self.files
            if file.startswith(f"{folder}{os.sep}")
        )


def _installed() -> list[tuple[str, Path]]:
    """Return where each package of this repository is imported from, and where it is kept."""
    homes = [h.parent for pattern in HOMES for h in ROOT.glob(f"{pattern}/__init__.py")]
    found = ((find_spec(home.name), home) for home in homes)
    return [
        (folder, home)
        for spec, home in found
        if spec is not None
        for folder in spec.submodule_search_locations or ()
    ]


def decode(tracer: Tracer) -> None:
    """Run one recorded step that decodes, offline."""
    from hotshoe.config import EngineConfig
    from hotshoe.engine.api.engine import Engine
    from hotshoe.types import SamplingParams, TextPrompt

    engine = Engine(EngineConfig(**OPTIONS))
    params = SamplingParams(max_tokens=20, ignore_eos=True, seed=1)
    engine.add("warm", TextPrompt("One day"), params)
    while engine.has_work():  # platforms may record what they meet often alone
        engine.step()
    engine.add("one", TextPrompt("One day"), params)
    for _ in range(12):
        engine.step()
    tracer.on = True
    engine.step()
    tracer.on = False
    assert engine.has_work()
    engine.close()


def chat(tracer: Tracer) -> None:
    """Answer one streamed chat request over HTTP, with the engine in a thread."""
    import httpx

    from hotshoe.config import EngineConfig
    from hotshoe.engine.api.async_engine import AsyncEngine
    from hotshoe.plugins import PluginManager
    from hotshoe_server.config import ServerConfig
    from hotshoe_server.serving import Server, Start
    from hotshoe_server.sockets import open_port

    listener = open_port("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"

    def ask() -> None:
        try:
            for tracer.on in (False, False, True):
                answer = httpx.post(url, json=BODY, timeout=60)
                assert answer.status_code == 200, answer.text
                assert answer.text.count('"content"') > 1, answer.text
            tracer.on = False
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    asker = threading.Thread(target=ask)

    def load() -> AsyncEngine:
        return AsyncEngine(EngineConfig(**OPTIONS))

    config, plugins = ServerConfig(), PluginManager()
    server = Server(
        config, plugins, {}, load, lambda line: None, start=Start(on_serving=asker.start)
    )
    server.run(listener, None)
    asker.join()


if __name__ == "__main__":
    tracer = Tracer()
    tracer.start()
    {"decode": decode, "chat": chat}[sys.argv[1]](tracer)
    sys.setprofile(None)
    print(json.dumps(tracer.own()))
