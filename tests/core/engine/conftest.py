"""Engines with faults to order, in a thread or in a process of their own."""

import importlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotshoe import AsyncEngine, EngineConfig
from hotshoe.engine.core.boot import boot
from hotshoe.engine.transport.loop import EngineLoop
from hotshoe.engine.transport.socket_port import SocketPort

PATH_LIMIT = 100
METADATA = "Metadata-Version: 2.1\nName: hotshoe-faulty\nVersion: 0\n"


@pytest.fixture(scope="session")
def faulty_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages in which the plugin of faulty.py is installed."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(Path(__file__).with_name("faulty.py"), site / "hotshoe_faulty.py")
    info = site / "hotshoe_faulty-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text("[hotshoe]\nfaulty = hotshoe_faulty\n")
    return site


@pytest.fixture(scope="session")
def install_faulty(faulty_site: Path) -> Callable[[pytest.MonkeyPatch], None]:
    """Let this process and its children find the faulty platform."""

    def install(patch: pytest.MonkeyPatch) -> None:
        patch.setenv("PYTHONPATH", str(faulty_site))
        patch.syspath_prepend(str(faulty_site))
        importlib.invalidate_caches()

    return install


@pytest.fixture
def faulty(install_faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    install_faulty(monkeypatch)


@pytest.fixture
def config(model_dir: Path, faulty: None) -> Callable[..., EngineConfig]:
    def make(faults: dict[str, object] | None = None, **options: object) -> EngineConfig:
        options.setdefault("engine_restarts", 0)  # one that died stays dead, if not said otherwise
        return EngineConfig(
            model=str(model_dir), platform="faulty", platform_options=faults or {}, **options
        )

    return make


@pytest.fixture
def start(config: Callable[..., EngineConfig]) -> Iterator[Callable[..., AsyncEngine]]:
    """Start engines: `start(transport, faults, **options)`; they are closed in the end."""
    engines: list[AsyncEngine] = []

    def make(transport: str, faults: dict[str, object] | None = None, **options) -> AsyncEngine:
        engine = AsyncEngine(config(faults, **options), transport=transport)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def hurry(tmp_path: Path) -> Path:
    """A file for the option of that name: what is slow until a test has seen it is fast then."""
    return tmp_path / "hurry"


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
    thread.join(60)
    assert not thread.is_alive() and not path.exists()
