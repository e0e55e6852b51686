"""Whatever a model directory holds, a reader takes it or refuses it in words, and does so soon."""

import contextlib
import json
import math
import struct
import tempfile
import time
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.mutations import changed_bytes, changed_json

from hotshoe.errors import CheckpointError, RequestError
from hotshoe.layers import Rotation
from hotshoe.loader.adapter import read_adapter
from hotshoe.loader.files import checkpoint_files
from hotshoe.loader.safetensors import SafetensorsFile
from hotshoe.models import ModelConfig
from hotshoe.models.generation import sampling_defaults
from hotshoe.text import Tokenizer
from hotshoe.text.chat_template import render
from hotshoe_models.gguf.model import FORMAT

REFUSED = (CheckpointError, RequestError)
SOON_S = 10.0
HEADER = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "c": {"dtype": "I8", "shape": [0, 7], "data_offsets": [32, 32]},
}
INDEX = {
    "metadata": {"total_size": 32},
    "weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"},
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 4096,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "torch_dtype": "bfloat16",
    "eos_token_id": [1, 2],
    "rope_theta": 10000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
}
GENERATION = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "eos_token_id": [1, 2]}
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [
        {
            "id": 2,
            "content": "<s>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": True,
            "special": True,
        }
    ],
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "_"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
            {"type": "NFC"},
        ],
    },
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": r"\s+"},
                "behavior": "Isolated",
                "invert": False,
            },
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            },
        ],
    },
    "decoder": {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "_"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    },
    "model": {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<s>",
        "vocab": {"a": 0, "b": 1, "<s>": 2, "ab": 3},
        "merges": [["a", "b"]],
    },
}
TOKENIZER_CONFIG = {
    "bos_token": "<s>",
    "eos_token": {"content": "<s>"},
    "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}],
}
GGUF = {
    "general.architecture": "llama",
    "general.alignment": 32,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.block_count": 1,
    "llama.feed_forward_length": 32,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": [2],
    "llama.attention.key_length": 8,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.attention.sliding_window": 16,
    "llama.attention.scale": 0.5,
    "llama.embedding_scale": 1.5,
    "llama.residual_scale": 0.5,
    "llama.logit_scale": 2.0,
    "llama.rope.dimension_count": 8,
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 4.0,
    "llama.rope.scaling.original_context_length": 16,
    "split.count": 1,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "llama-bpe",
    "tokenizer.ggml.tokens": ["<s>", "</s>", "a", "b", "ab", "<0x41>"],
    "tokenizer.ggml.token_type": [3, 3, 1, 1, 1, 6],
    "tokenizer.ggml.scores": [0.0, 0.0, -1.0, -2.0, -3.0, 0.0],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.chat_template": "{{ messages[0].content }}",
    "tokenizer.chat_templates": ["tool_use"],
    "tokenizer.chat_template.tool_use": "{{ tools }}",
}
#: Name, shape as files have it, number of the type, offset.
GGUF_TENSORS = [
    ["token_embd.weight", [32, 6], 0, 0],
    ["blk.0.attn_q.weight", [32, 32], 8, 768],
    ["blk.0.attn_norm.weight", [32], 0, 1856],
    ["rope_freqs.weight", [4], 0, 1984],
]
TEMPLATE = """{%- macro say(m) -%}<{{ m.role | upper }}>{{ m.content | trim }}{%- endmacro -%}
{% for m in messages if m.content %}{{ say(m) }}{% set n = loop.index * 2 %}
{%- if tools is defined and loop.last %}{{ tools | tojson(indent=2) }}{{ 'x' ~ n }}{% endif %}
{% endfor %}
{{ '%05d' % 3 }}{{ '{:>8}'.format('a') }}{{ messages | map(attribute='role') | join }}"""
PIECES = st.sampled_from(
    [
        *("range(99999)", "{% for a in range(99999) %}", "{% endfor %}", "loop(", "say(", "("),
        *("* 99999999", "** 9999", "| center(99999999)", "| tojson", "~ messages", "messages"),
        *("{{", "}}", "{%", "%}"),
    ]
)


def directory(**files: bytes) -> tempfile.TemporaryDirectory[str]:
    """Write a model directory; names have `__` for a point."""
    folder = tempfile.TemporaryDirectory()
    for name, data in files.items():
        (Path(folder.name) / name.replace("__", ".")).write_bytes(data)
    return folder


def attempt(read, *arguments) -> None:
    """Call a reader, which may refuse what it reads, but must be done soon."""
    begin = time.thread_time()
    with contextlib.suppress(*REFUSED):
        read(*arguments)
    assert time.thread_time() - begin < SOON_S


def encoded(value) -> bytes:
    return json.dumps(value).encode()


def documents(seed) -> st.SearchStrategy[bytes]:
    """Make broken forms of a JSON document."""
    return st.one_of(changed_json(seed).map(encoded), changed_bytes(encoded(seed)))


def whole(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(32)


@given(st.one_of(documents(HEADER).map(whole), changed_bytes(whole(encoded(HEADER)))))
def test_safetensors(data):
    def read(path):
        file = SafetensorsFile(path)
        for name in file.names():
            file.tensor(name).flatten()
            file.release_through(name)

    with directory(model__safetensors=data) as folder:
        attempt(read, Path(folder) / "model.safetensors")


@given(documents(INDEX))
def test_index(data):
    with directory(model__safetensors__index__json=data) as folder:
        attempt(checkpoint_files, Path(folder))


@given(documents(CONFIG), documents(GENERATION))
def test_configuration(config, generation):
    def read(path):
        found = ModelConfig.load(path)
        assert found.longest_len > 0
        Rotation.from_config(found.values, 16, min(found.max_model_len, 64))

    with directory(config__json=config, generation_config__json=generation) as folder:
        attempt(read, Path(folder))
    with directory(config__json=config, generation_config__json=encoded(GENERATION)) as folder:
        attempt(read, Path(folder))
        attempt(sampling_defaults, "auto", Path(folder))
    with directory(generation_config__json=generation) as folder:
        attempt(sampling_defaults, "auto", Path(folder))


@given(documents(TOKENIZER), documents(TOKENIZER_CONFIG))
def test_tokenizer(tokenizer, config):
    def read(path):
        found = Tokenizer.load(path)
        ids = found.encode("ab <s> a\n")
        found.decode(ids)
        for token in range(4):
            assert len(found.pieces[token]) < 2**20

    with directory(tokenizer__json=tokenizer) as folder:
        attempt(read, Path(folder))
    with directory(tokenizer__json=encoded(TOKENIZER), tokenizer_config__json=config) as folder:
        attempt(read, Path(folder))


def packed(value) -> bytes:
    """Encode a value of JSON as GGUF does, its type before it; what has none becomes a text."""
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<Id", 12, value)
    if isinstance(value, list):
        entries = [packed(entry) for entry in value] or [struct.pack("<I", 0)]
        alike = [entry[4:] for entry in entries if entry[:4] == entries[0][:4]]
        count = len(alike) if value else 0
        return struct.pack("<I", 9) + entries[0][:4] + struct.pack("<Q", count) + b"".join(alike)
    text = str(value).encode(errors="replace")
    return struct.pack("<IQ", 8, len(text)) + text


def gguf_file(values, tensors) -> bytes:
    """Write a file; entries that cannot be encoded are left out."""
    keys = b"".join(packed(key)[4:] + packed(value) for key, value in values.items())
    infos, count = b"", 0
    for entry in tensors:
        with contextlib.suppress(struct.error, TypeError, ValueError):
            name, shape, kind, offset = entry
            dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
            infos += packed(name)[4:] + dims + struct.pack("<IQ", kind, offset)
            count += 1
    head = b"GGUF" + struct.pack("<IQQ", 3, count, len(values)) + keys + infos
    return head + bytes(-len(head) % 32) + struct.pack("<f", 1.0) * 512


def gguf_files() -> st.SearchStrategy[bytes]:
    """Make broken forms of a file, with the other vocabulary too."""
    pieces = GGUF | {"tokenizer.ggml.model": "llama"}
    values = st.sampled_from([GGUF, pieces]).flatmap(changed_json)
    whole = gguf_file(GGUF, GGUF_TENSORS)
    return st.one_of(
        st.builds(gguf_file, values, st.just(GGUF_TENSORS)),
        st.builds(gguf_file, st.just(GGUF), changed_json(GGUF_TENSORS)),
        changed_bytes(whole),
    )


def read_gguf(path: Path) -> None:
    model = FORMAT.open(path)
    found = ModelConfig.load(path, file=model)
    Rotation.from_config(found.values, 8, 64)
    for source in (model.weights(torch.float32), model.weights(torch.bfloat16)):
        for name in source.names():
            source.tensor(name)
            source.taken(name)
    tokenizer = Tokenizer.of_file(path, model)
    tokenizer.decode(tokenizer.encode("ab <s> a\n"))


def test_the_seed_is_a_model():
    with directory(m__gguf=gguf_file(GGUF, GGUF_TENSORS)) as folder:
        read_gguf(Path(folder) / "m.gguf")


@given(gguf_files())
def test_gguf(data):
    with directory(m__gguf=data) as folder:
        attempt(read_gguf, Path(folder) / "m.gguf")


ADAPTER = {
    "peft_type": "LORA",
    "r": 2,
    "lora_alpha": 16,
    "use_rslora": True,
    "use_dora": True,
    "alpha_pattern": {"q": 4},
    "bias": "none",
}
FACTORS = {
    "base_model.model.m.q.lora_A.weight": {
        "dtype": "F32",
        "shape": [2, 4],
        "data_offsets": [0, 32],
    },
    "base_model.model.m.q.lora_B.weight": {
        "dtype": "BF16",
        "shape": [3, 2],
        "data_offsets": [32, 44],
    },
    "base_model.model.m.q.lora_magnitude_vector": {
        "dtype": "F16",
        "shape": [3],
        "data_offsets": [44, 50],
    },
}


def read_taken(config: bytes, weights: bytes) -> None:
    with directory(adapter_config__json=config, adapter_model__safetensors=weights) as folder:
        for pair in read_adapter(Path(folder)).values():
            assert math.isfinite(pair.scale)
            assert len(pair.a) == len(pair.a @ pair.a.T) > 0
            assert pair.b.dim() == 2
            assert pair.magnitude is None or pair.magnitude.isfinite().all()


def factors_file(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(50)


def test_the_seed_is_an_adapter():
    read_taken(encoded(ADAPTER), factors_file(encoded(FACTORS)))


@given(documents(ADAPTER), documents(FACTORS).map(factors_file))
def test_adapter(config, weights):
    attempt(read_taken, config, factors_file(encoded(FACTORS)))
    attempt(read_taken, encoded(ADAPTER), weights)


@st.composite
def templates(draw: st.DrawFn) -> str:
    """Cut pieces out of a template and put others in."""
    text = TEMPLATE
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(text)))
        end = min(begin + draw(st.integers(0, 12)), len(text))
        text = text[:begin] + draw(PIECES) + text[end:]
    return text


@given(templates())
def test_chat_template(source):
    messages = [{"role": "user", "content": "hello"}, {"role": "tool", "content": None}]
    attempt(render, source, {"messages": messages, "tools": [{"name": "f"}]})
