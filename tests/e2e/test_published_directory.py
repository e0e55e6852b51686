"""A model directory as people have it: written by transformers, with what a download brings along.

Several shards with an index, the same weights under other names, folders and notes: the commands
answer as transformers does.
"""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from hotshoe import LLM
from hotshoe.cli.main import main
from hotshoe_demo import MODEL

NUM_TOKENS = 12
#: Several tokens end a text, as often.
EOS = [8190, 8191]
FLAGS = ["--platform", "cpu", "--dtype", "float32", "--kv-cache-memory-bytes", "20000000"]
GREEDY = ["--temperature", "0", "--max-tokens", str(NUM_TOKENS), "--quiet"]


@pytest.fixture(scope="module")
def tokenizer() -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def published(tmp_path_factory, tokenizer) -> tuple[Path, transformers.PreTrainedModel]:
    """Write a directory; return it with the model in it."""
    path = tmp_path_factory.mktemp("published") / "Tiny-Chat"
    config = transformers.Qwen3Config(
        vocab_size=8192,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.5,
        tie_word_embeddings=True,
        eos_token_id=EOS[0],
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)  # so that no two tokens are as likely as each other
        model = transformers.Qwen3ForCausalLM(config).eval()
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=EOS, do_sample=True, temperature=0.6, top_k=20, top_p=0.95
    )
    model.save_pretrained(path, max_shard_size="50KB")
    assert len(list(path.glob("model-*.safetensors"))) > 3
    tokenizer.save_pretrained(path)
    save_file({"layers.0.attention.wq.weight": torch.zeros(2)}, path / "consolidated.safetensors")
    (path / "original").mkdir()
    (path / "original" / "consolidated.00.pth").write_bytes(b"\x80\x02")
    (path / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
    (path / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    return path, model


def greedy(model: transformers.PreTrainedModel, ids: list[int]) -> list[int]:
    """Return what transformers adds."""
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            generation_config=transformers.GenerationConfig(
                do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=EOS, pad_token_id=0
            ),
        )
    return out[0, len(ids) :].tolist()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, *FLAGS, *GREEDY]) == 0
    return capsys.readouterr().out


def test_generate_writes_what_transformers_writes(published, tokenizer, capsys) -> None:
    path, model = published
    expected = greedy(model, tokenizer("The list of files")["input_ids"])
    document = json.loads(run(capsys, "generate", str(path), "--json", "-p", "The list of files"))
    [request] = document["requests"]
    assert request["outputs"][0]["token_ids"] == expected
    assert request["outputs"][0]["text"] == tokenizer.decode(expected, skip_special_tokens=True)


def test_chat_renders_the_template_as_transformers_does(published, tokenizer, capsys) -> None:
    path, model = published
    question = [{"role": "user", "content": "What is 2 + 2?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    expected = greedy(model, tokenizer(prompt, add_special_tokens=False)["input_ids"])
    found = run(capsys, "chat", str(path), "-p", "What is 2 + 2?")
    assert found == tokenizer.decode(expected, skip_special_tokens=True) + "\n"


def test_its_authors_choices_are_defaults(published) -> None:
    path, _ = published
    with LLM(str(path), platform="cpu", kv_cache_memory_bytes=20_000_000) as llm:
        assert llm.sampling_defaults == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
        assert set(EOS) <= set(llm.engine.info.eos_token_ids)
