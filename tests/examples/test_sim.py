"""examples/platform-sim: a platform from outside, with a device of its own, installed with pip."""

import ast
import json
from pathlib import Path

import openai
import pytest
from tests.plugins.served import Served, serve

from hotshoe.cli.main import main

MAX_CORE_MODULES = 6
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def sim(root: Path) -> Path:
    return root / "examples/platform-sim"


@pytest.fixture(scope="module")
def installed(sim: Path, shared, tmp_path_factory: pytest.TempPathFactory):
    """An installation that has the platform."""
    shared.install(sim, tmp_path_factory.mktemp("sim"))
    return shared


def test_it_knows_few_modules_of_core_and_patches_nothing(sim: Path) -> None:
    core, assigned = set(), []
    for path in sim.glob("hotshoe_sim/*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("hotshoe."):
                core.add(node.module)
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("hotshoe.") for alias in node.names)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr":
                assigned.append(path.name)
    assert 3 <= len(core) <= MAX_CORE_MODULES, sorted(core)
    assert assigned == []


def test_the_engine_runs_on_it(installed, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(installed.ok("hotshoe", "platforms", "--json"))
    assert [p["status"] for p in found if p["platform"] == "sim"] == ["available"]
    words = [
        "generate",
        "demo",
        "-p",
        "The list of files",
        "--max-tokens",
        "6",
        "--temperature",
        "0",
    ]
    words += ["--dtype", "float32", "--max-num-seqs", "4", "--platform"]
    here = installed.ok("hotshoe", *words, "sim")
    assert main([*words, "cpu"]) == 0
    assert here == capsys.readouterr().out


@pytest.mark.parametrize(
    "chosen",
    [
        "not offload or recorded",
        # tests/core/layers/test_offload.py asks the same of layers.
        pytest.param("offload and not recorded", marks=pytest.mark.slow),
    ],
)
def test_its_own_tests_pass(sim: Path, installed, chosen: str) -> None:
    """Of its device, of steps, which are the same however they are recorded, and of weights that
    lie in host memory."""
    files = [str(sim / f"tests/test_{name}.py") for name in ("device", "steps", "offload")]
    assert " passed" in installed.ok("pytest", *files, "-k", chosen)


def test_every_kind_of_slot_is_served(installed) -> None:
    """Operations, movement, recordings: what core would otherwise do itself."""
    words = ("explain", "demo", "--platform", "sim", "--json")
    chosen = {
        d["slot"]: d["chosen"] for d in json.loads(installed.ok("hotshoe", *words))["decisions"]
    }
    own = {slot for slot, name in chosen.items() if name not in ("reference", "composed")}
    assert own == {"attention", "gated_mlp", "rms_norm", "transfer", "graph"}


def answers(served: Served) -> list[object]:
    """What a server says to a stream, to a schema, and about log probabilities."""
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=120)
    chat = {"model": "demo", "temperature": 0, "max_tokens": 24}
    question = [{"role": "user", "content": "What is 17 + 25?"}]
    with client.chat.completions.create(messages=question, stream=True, **chat) as stream:
        pieces = [chunk.choices[0].delta.content for chunk in stream if chunk.choices]
    person = [{"role": "user", "content": "Give me a person as JSON."}]
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    made = client.chat.completions.create(messages=person, response_format=form, **chat)
    judged = client.completions.create(
        model="demo", prompt="The list of files", max_tokens=6, temperature=0, logprobs=2, n=2
    )
    client.close()
    texts = [choice.text for choice in judged.choices]
    numbers = [number for c in judged.choices for number in c.logprobs.token_logprobs]
    return ["".join(filter(None, pieces)), made.choices[0].message.content, texts, numbers]


@pytest.mark.slow  # an engine runs on it, and one beside a CPU's, in other tests
@pytest.mark.parametrize("devices", ["1", "2"])
def test_the_server_runs_on_it(installed, devices: str) -> None:
    """On one device and on two, it says what it says on a CPU."""
    common = ("demo", "--dtype", "float32", "--max-num-seqs", "4", "--platform")
    with serve(*common, "cpu") as served:
        expected = answers(served)
    assert set(json.loads(expected[1])) == {"name", "age"}
    words = ("sim", "--tensor-parallel-size", devices)
    with serve(*common, *words, python=str(installed.python)) as served:
        found = answers(served)
    assert found[:3] == expected[:3]
    assert found[3] == pytest.approx(expected[3], abs=1e-3)


@pytest.mark.slow  # tests/e2e/test_platforms_together.py moves blocks between platforms
def test_it_and_a_cpu_serve_in_one_process(installed) -> None:
    """And each goes on with requests that the other began: blocks differ in size and layout."""
    script = Path(__file__).with_name("together.py")
    assert installed.ok("python", str(script)).split("\n")[:2] == [
        "cpu 32 hdt htd",
        "sim 16 thd",
    ]


@pytest.mark.slow  # tests/core/slots/test_graph.py asks what waits
def test_without_its_kernels_nothing_is_recorded(installed) -> None:
    """The reference of attention waits for the device, and start-up says what follows."""
    words = ("generate", "demo", "-p", "The list of", "--max-tokens", "2", "--max-num-seqs", "2")
    done = installed.run("hotshoe", *words, "--platform", "sim", "--kernel", "attention=reference")
    assert done.returncode == 0
    assert "graphs none recorded, as the reference of attention waits" in done.stderr


@pytest.mark.slow
def test_uneven_sizes_and_stages_are_divided_among_four_processes(installed) -> None:
    script = Path(__file__).with_name("divided.py")
    assert installed.ok("python", str(script)).split() == ["1", "2", "3", "4", "2", "1", "2", "2"]


@pytest.mark.slow
def test_it_conforms(sim: Path, installed) -> None:
    assert " passed" in installed.ok("pytest", str(sim / "tests/test_conformance.py"))


def test_what_cannot_be_is_refused_by_name(installed) -> None:
    words = ("generate", "demo", "-p", "The", "--platform", "sim")
    done = installed.run("hotshoe", *words, "--platform-options.memory_mib", "64")
    assert done.returncode == 2
    assert "KV cache may take" in done.stderr
    done = installed.run("hotshoe", *words, "--platform-options.memory", "64")
    assert done.returncode == 2
    assert "it has memory_mib" in done.stderr
