"""Files of a model: which one is meant, which belong together, and the way to an answer."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tests.plugins.models.gguf.conftest import of_matrices, tiny_model, write

from hotshoe import LLM, SamplingParams
from hotshoe.cli.main import main
from hotshoe.config import EngineConfig
from hotshoe.engine.start.places import find_model, open_model
from hotshoe.errors import CheckpointError, UserError
from hotshoe.loader import checkpoint
from hotshoe.plugins import PluginManager
from hotshoe_models.gguf.model import FORMAT

ROOM = {"dtype": "float32", "kv_cache_memory_bytes": 2**21, "max_num_seqs": 2}
PART = "m-F16-00001-of-00002.gguf"


@pytest.mark.parametrize(
    ("names", "asked", "chosen"),
    [
        (["m.gguf", "README.md"], None, "m.gguf"),
        (["config.json"], None, None),
        (["m-Q4_K_M.gguf", "m-Q4_K_S.gguf"], "q4_k_m", "m-Q4_K_M.gguf"),
        (["m.Q4_0.gguf", "m.Q8_0.gguf"], "Q8_0", "m.Q8_0.gguf"),
        (["Q8_0.gguf", "m-IQ8_0.gguf"], "Q8_0", "Q8_0.gguf"),
        (["m-F16-00002-of-00002.gguf", PART], "F16", PART),
        (["mmproj-m-F16.gguf", "m-F16.gguf", "m-BF16.gguf"], "F16", "m-F16.gguf"),
        (["m-mmproj-F16.gguf", f"F16/{PART}"], "f16", f"F16/{PART}"),
        (["Q8_0/Q8_0.gguf", "Q4_0/Q4_0.gguf"], "Q8_0", "Q8_0/Q8_0.gguf"),
        (["m-UD-Q8_0.gguf", "m-Q8_0.gguf"], "m-Q8_0", "m-Q8_0.gguf"),
    ],
)
def test_one_of_a_directory(names: list[str], asked: str | None, chosen: str | None) -> None:
    assert FORMAT.choose(names, asked) == chosen


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (None, "several GGUF models among a-Q4_0.gguf, .*DIRECTORY:Q4_K_M"),
        ("Q4", "no GGUF model Q4"),
        ("Q8_0", "several GGUF models .* as in DIRECTORY:a-Q8_0"),
    ],
)
def test_no_guess_is_made(asked: str | None, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        FORMAT.choose(["a-Q4_0.gguf", "a-Q8_0.gguf", "a-UD-Q8_0.gguf"], asked)


def split(path: Path, folder: Path, count: int = 2) -> list[Path]:
    """Cut a file into parts, as the format's own tool does."""
    reader = gguf.GGUFReader(path)
    folder.mkdir(parents=True)
    parts = []
    for i in range(count):
        keys = {"split.no": i, "split.count": count, "split.tensors.count": len(reader.tensors)}
        fields = {} if i else {k: f.contents() for k, f in reader.fields.items() if "." in k}
        fields.pop("general.architecture", None)
        tensors = {t.name: np.array(t.data) for t in reader.tensors[i::count]}
        name = folder / f"m-F32-{i + 1:05}-of-{count:05}.gguf"
        parts.append(write(name, "llama", fields | keys, tensors))
    return parts


def answer(model: Path | str) -> list[int]:
    with LLM(str(model), **ROOM) as llm:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        return list(llm.generate(["ab"], params)[0].outputs[0].token_ids)


def test_a_file_a_directory_a_variant_and_parts_answer_alike(tiny: Path, tmp_path: Path) -> None:
    wanted = answer(tiny)
    assert answer(tiny.parent) == answer(f"{tiny.parent}:F32") == wanted
    parts = split(tiny, tmp_path / "all" / "parts")
    assert answer(parts[1]) == answer(parts[0].parent) == answer(f"{tmp_path}/all:F32") == wanted


def test_parts_must_be_whole(tiny: Path, tmp_path: Path) -> None:
    parts = split(tiny, tmp_path / "parts", 3)
    parts[1].rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"00002-of-00003.gguf is missing"):
        FORMAT.open(parts[0])
    parts[2].rename(parts[1])
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(
        CheckpointError, match=r"says that it is part 2 .* of 3, but .* part 1 of 3"
    ):
        FORMAT.open(parts[0])
    with pytest.raises(CheckpointError, match="says that it is part 2"):
        FORMAT.open(parts[2].rename(tmp_path / "alone.gguf"))
    with pytest.raises(CheckpointError, match="numbered from 1"):
        FORMAT.open(tmp_path / "m-00007-of-00002.gguf")


def test_two_parts_with_the_same_tensor(tmp_path: Path) -> None:
    for i in (0, 1):
        keys = {"split.no": i, "split.count": 2}
        name = tmp_path / f"m-0000{i + 1}-of-00002.gguf"
        write(name, "llama", keys, {"output.weight": np.ones((2, 2), np.float32)})
    with pytest.raises(CheckpointError, match=r"another part of the model holds output\.weight"):
        FORMAT.open(tmp_path / "m-00001-of-00002.gguf")


def test_safetensors_come_first(tiny: Path) -> None:
    plugins = PluginManager()
    for name in ("config.json", "model.safetensors"):
        (tiny.parent / name).touch()
    assert find_model(EngineConfig(model=str(tiny.parent)), plugins).path == tiny.parent
    assert find_model(EngineConfig(model=f"{tiny.parent}:f32"), plugins).path == tiny
    with pytest.raises(CheckpointError, match="no GGUF model Q2_K"):
        find_model(EngineConfig(model=f"{tiny.parent}:Q2_K"), plugins)


def test_a_url_is_no_model() -> None:
    with pytest.raises(UserError, match="is a URL, from which nothing is fetched"):
        find_model(EngineConfig(model="https://example.org/m.gguf"), PluginManager())


def test_chat_with_the_template_of_the_file(tiny: Path) -> None:
    with LLM(str(tiny), **ROOM) as llm:
        messages = [{"role": "user", "content": "ai"}]
        [found] = llm.chat(messages, SamplingParams(temperature=0, max_tokens=3))
        assert llm.tokenizer.decode(found.prompt_token_ids, False) == "<s>ai</s>"
        assert llm.engine.info.eos_token_ids == (2,)


def test_the_type_follows_the_file(tiny: Path, tmp_path: Path) -> None:
    file = open_model(tiny, PluginManager())
    assert file is not None and file.config()["dtype"] == "float32"
    names = list(file.weights(torch.float32).names())
    assert "lm_head.weight" not in names and file.config()["tie_word_embeddings"]


def test_random_weights_are_plain(tmp_path: Path) -> None:
    values, tensors = tiny_model()
    path = write(tmp_path / "m.gguf", "llama", values, tensors, of_matrices("Q4_0"))
    with LLM(str(path), load_format="dummy", **ROOM) as llm:
        [found] = llm.generate(["ab"], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
        specs = [d.spec for d in llm.engine.info.decisions if d.slot == "linear"]
    assert len(found.outputs[0].token_ids) == 3 and not any("int4" in spec for spec in specs)


def test_numbers_that_are_not_finite_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint.checked, "FOLDER", tmp_path / "marks")
    values, tensors = tiny_model()
    command = ["-p", "a", "--max-tokens", "1", "--kv-cache-memory-bytes", str(2**21)]
    for bad, code in ((1.0, 0), (np.nan, 2), (np.inf, 2)):
        tensors["blk.0.ffn_norm.weight"][-1] = bad
        path = write(tmp_path / "m.gguf", "llama", values, tensors, of_matrices("Q4_0"))
        assert main(["generate", str(path), *command]) == code
        error = capsys.readouterr().err
        assert ("post_attention_layernorm.weight holds NaN or infinity" in error) is (code == 2)


def test_a_file_is_looked_through_until_it_was_found_sound(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    sound = checkpoint.is_finite
    monkeypatch.setattr(checkpoint, "is_finite", lambda t: looked.append(t.numel()) or sound(t))
    monkeypatch.setattr(checkpoint.checked, "FOLDER", tmp_path / "marks")
    assert answer(tiny) and looked
    looked.clear()
    assert answer(tiny) and not looked


def test_a_broken_file_ends_the_command_in_one_line(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny.read_bytes()[:5000])
    assert main(["generate", str(broken), "-p", "a"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"{broken} is unusable" in line
