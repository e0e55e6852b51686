"""Tensors of a file under the checkpoint's names, and rows of q and k in their order."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tests.plugins.models.gguf.conftest import paired, text, write

from hotshoe.errors import CheckpointError
from hotshoe_models.gguf import weights
from hotshoe_models.gguf.families import FAMILIES, MIXTURES
from hotshoe_models.gguf.family import unpaired
from hotshoe_models.gguf.header import Header
from hotshoe_models.gguf.weights import Tensors

HEADS = {"head_dim": 6}


def tensors(path: Path, family: str = "qwen2", dtype: torch.dtype = torch.float32) -> Tensors:
    return Tensors([Header(path)], FAMILIES[family], HEADS, dtype)


def test_plain_numbers_keep_their_type(tmp_path: Path) -> None:
    values = {f"blk.0.ffn_{n}.weight": np.random.randn(4, 8) for n in ("up", "down", "gate")}
    values = {name: v.astype(np.float32) for name, v in values.items()}
    kinds = dict(zip(values, ("F32", "F16", "BF16"), strict=True))
    source = tensors(write(tmp_path / "m.gguf", "qwen2", {}, values, kinds.get))
    for part, dtype in (("up", "float32"), ("down", "float16"), ("gate", "bfloat16")):
        name = f"model.layers.0.mlp.{part}_proj.weight"
        wanted = torch.from_numpy(values[f"blk.0.ffn_{part}.weight"]).to(getattr(torch, dtype))
        assert torch.equal(source.tensor(name), wanted)
        source.taken(name)
        assert torch.equal(source.tensor(name), wanted)  # read again
        assert source.stored(name) == (kinds[f"blk.0.ffn_{part}.weight"], wanted.nbytes)


def test_packed_numbers_come_in_the_type_that_is_asked_for(tmp_path: Path) -> None:
    value = np.random.randn(6, 64).astype(np.float32)
    path = write(tmp_path / "m.gguf", "qwen2", {}, {"output.weight": value}, lambda name: "Q4_0")
    known = gguf.GGMLQuantizationType.Q4_0
    wanted = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(value, known), known))
    assert tensors(path).stored("lm_head.weight") == ("Q4_0", 6 * 64 // 32 * 18)
    for dtype in (torch.float32, torch.bfloat16):
        found = tensors(path, dtype=dtype).tensor("lm_head.weight")
        assert torch.equal(found, wanted.to(dtype))


def test_rows_of_pairs_are_put_back(tmp_path: Path) -> None:
    rows = np.random.randn(4 * 6, 5).astype(np.float32)
    assert torch.equal(unpaired(torch.from_numpy(paired(rows, 4)), 6), torch.from_numpy(rows))
    q, k, bias = rows, rows[:12], rows[:, 0]
    values = {"attn_q.weight": paired(q, 4), "attn_k.weight": paired(k, 2)}
    values |= {"attn_q.bias": paired(bias, 4), "attn_v.weight": k}
    values = {f"blk.1.{name}": value for name, value in values.items()}
    source = tensors(write(tmp_path / "m.gguf", "llama", {}, values), "llama")
    prefix = "model.layers.1.self_attn."
    for name, value in {"q_proj.weight": q, "k_proj.weight": k, "q_proj.bias": bias}.items():
        assert torch.equal(source.tensor(prefix + name), torch.from_numpy(value))
    assert torch.equal(source.tensor(prefix + "v_proj.weight"), torch.from_numpy(k))


def test_experts_come_one_by_one(tmp_path: Path) -> None:
    rng = np.random.default_rng()
    parts = {"gate": (3, 8, 32), "up": (3, 8, 32), "down": (3, 32, 64)}
    values = {f"blk.0.ffn_{n}_exps.weight": rng.normal(0, 1, s) for n, s in parts.items()}
    values["{}.weight"] = rng.normal(0, 1, (2, 2))
    values = {name: value.astype(np.float32) for name, value in values.items()}
    kinds = {name: "Q8_0" if "down" in name else "F32" for name in values}
    path = write(tmp_path / "m.gguf", "qwen3moe", {}, values, kinds.get)
    header = Header(path)
    source = Tensors([header], MIXTURES["qwen3moe"], HEADS, torch.float32)
    prefix = "model.layers.0.mlp.experts"
    wanted = [f"{prefix}.{i}.{part}_proj.weight" for i in range(3) for part in parts]
    assert list(source.names()) == ["{}.weight", *wanted]
    known = gguf.GGMLQuantizationType.Q8_0
    for name in wanted:
        value = torch.from_numpy(values[f"blk.0.ffn_{name.split('.')[-2][:-5]}_exps.weight"])
        if "down" in name:
            assert source.stored(name) == ("Q8_0", 32 * 64 // 32 * 34)
            value = torch.from_numpy(gguf.quants.quantize(value.numpy(), known))
            value = torch.from_numpy(gguf.quants.dequantize(value.numpy(), known))
        assert torch.equal(source.tensor(name), value[int(name.split(".")[5])])
        source.taken(name)


def test_a_file_of_countless_experts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "MAX_MATRICES", 5)
    value = np.ones((3, 2, 2), np.float32)
    names = ("blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight")
    path = write(tmp_path / "m.gguf", "olmoe", {}, dict.fromkeys(names, value))
    with pytest.raises(CheckpointError, match="more than 5 matrices of experts"):
        Tensors([Header(path)], MIXTURES["olmoe"], HEADS, torch.float32)


def test_unknown_names_stay_and_factors_are_no_weights(tmp_path: Path) -> None:
    value = np.ones(4, np.float32)
    names = ("blk.0.strange.weight", "rope_freqs.weight", "output_norm.weight")
    path = write(tmp_path / "m.gguf", "gemma2", {}, dict.fromkeys(names, value))
    source = tensors(path, "gemma2")
    assert set(source.names()) == {"blk.0.strange.weight", "model.norm.weight"}
    assert torch.equal(source.tensor("model.norm.weight"), torch.zeros(4))


def test_an_alignment_below_the_size_of_a_number(tmp_path: Path) -> None:
    from struct import pack

    keys = text("general.alignment") + pack("<II", 4, 1)
    head = b"GGUF" + pack("<IQQ", 3, 1, 1) + keys
    head += text("output.weight") + pack("<IQQIQ", 2, 2, 1, 0, 0)
    path = tmp_path / "m.gguf"
    path.write_bytes(head + pack("<2f", 1.5, -2.0))
    assert len(head) % 4  # so that the numbers lie askew
    assert tensors(path).tensor("lm_head.weight").tolist() == [[1.5, -2.0]]


def test_factors_beside_matrices_multiply_them(tmp_path: Path) -> None:
    shapes = {"attn_q.weight": (4, 32), "ffn_gate_up_exps.weight": (2, 6, 32)}
    values = {name: np.random.randn(*shape) for name, shape in shapes.items()}
    values |= {"attn_q.scale": np.array([3.0]), "attn_q.input_scale": np.array([2.0])}
    values |= {"ffn_gate_up_exps.scale": np.array([0.5, 2.0])}
    values = {f"blk.0.{name}": value.astype(np.float32) for name, value in values.items()}

    def source() -> Tensors:
        path = write(tmp_path / "m.gguf", "qwen3moe", {}, values)
        return Tensors([Header(path)], MIXTURES["qwen3moe"], HEADS, torch.float32)

    found, prefix = source(), "model.layers.0."
    wanted = {f"{prefix}self_attn.q_proj.weight": 3 * values["blk.0.attn_q.weight"]}
    both = values["blk.0.ffn_gate_up_exps.weight"]
    for expert, factor in enumerate((0.5, 2.0)):
        for part, rows in zip(("gate", "up"), np.split(both[expert], 2), strict=True):
            wanted[f"{prefix}mlp.experts.{expert}.{part}_proj.weight"] = factor * rows
    assert set(found.names()) == set(wanted)
    for name, value in wanted.items():
        assert torch.equal(found.tensor(name), torch.from_numpy(value))
    for bad, said in (([1.0] * 3, "has 3 factors"), ([1.0, np.nan], "NaN or infinite")):
        values["blk.0.ffn_gate_up_exps.scale"] = np.array(bad, np.float32)
        with pytest.raises(CheckpointError, match=said):
            source()
    values["blk.0.ffn_gate_up_exps.scale"] = np.ones(2, np.float32)
    values["blk.0.ffn_gate_up_exps.weight"] = np.ones((2, 5, 32), np.float32)
    with pytest.raises(CheckpointError, match="5 rows, which are not those of 2"):
        source()


@pytest.mark.parametrize("bad", ["text", [1.0, np.nan], [1]])
def test_weights_that_metadata_list_are_numbers(tmp_path: Path, bad: Any) -> None:
    keys = {"xielu.beta": [0.5, 0.25]}
    found = tensors(write(tmp_path / "m.gguf", "apertus", keys, {}), "apertus")
    names = [f"model.layers.{i}.mlp.act_fn.beta" for i in range(2)]
    assert list(found.names()) == names and found.stored(names[0]) == ("F32", 4)
    assert [found.tensor(name).item() for name in names] == keys["xielu.beta"]
    found.taken(names[0])
    with pytest.raises(CheckpointError, match=r"xielu\.beta is no list of numbers"):
        tensors(write(tmp_path / "n.gguf", "apertus", {"xielu.beta": bad}, {}), "apertus")
