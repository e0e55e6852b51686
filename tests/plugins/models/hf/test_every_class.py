"""Every causal class of transformers, tiny and random: its tokens, or a refusal in words.

Configurations are made small by the names that sizes usually have. A class whose configuration
takes none of these is left out, as is one that stays large.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import UserError

pytestmark = pytest.mark.slow  # a minute
WIDTHS = ("hidden_size", "n_embd", "d_model")
DEPTHS = ("num_hidden_layers", "n_layer", "decoder_layers")
HEADS = ("num_attention_heads", "n_head", "decoder_attention_heads")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
GROUPS = ("n_group", "topk_group", "num_expert_group")
SIZES = {
    **dict.fromkeys(WIDTHS, 64),
    **dict.fromkeys(DEPTHS, 4),
    **dict.fromkeys(HEADS, 4),
    **dict.fromkeys(EXPERTS, 4),
    **dict.fromkeys(GROUPS, 1),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim"), 96),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    "vocab_size": 256,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "encoder_layers": 2,
    "mamba_d_state": 16,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
}
#: What some configurations do without.
OMITTED = ((), ("head_dim",), ("num_key_value_heads",), ("num_key_value_heads", "head_dim"))
MOST = 60_000_000
PROMPT = [5, 9, 33, 7, 81, 64, 2, 19, 100, 44, 3]
OPTIONS: dict[str, Any] = {
    "platform": "cpu",
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 32,
    "max_num_seqs": 1,
    "kv_cache_memory_bytes": 1 << 24,
}
CLASSES = sorted(
    {
        name
        for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        for name in ([names] if isinstance(names, str) else names)
    }
)


def made_small(kind: Any) -> Any:
    """Return a model of a class, or skip."""
    for omitted in OMITTED:
        sizes = {key: value for key, value in SIZES.items() if key not in omitted}
        try:
            config = kind.config_class(**sizes)
            config._attn_implementation = "eager"
            with torch.device("meta"):
                count = sum(p.numel() for p in kind(copy.deepcopy(config)).parameters())
        except Exception:  # of any kind, for sizes that it does not take
            count = None
        if count is None:
            continue
        if count > MOST:
            pytest.skip(f"it has {count} numbers")
        return kind(config).eval()
    pytest.skip("its configuration has other sizes")


def randomize(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.8 * parameter.shape[-1] ** -0.5)
            elif parameter.is_floating_point():
                parameter.add_(0.1 * torch.randn_like(parameter))


@torch.inference_mode()
def logits(model: Any, ids: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


@pytest.mark.parametrize("name", CLASSES)
def test_tokens_are_those_of_transformers_or_it_is_refused(name: str, tmp_path: Path) -> None:
    model = made_small(getattr(transformers, name))
    randomize(model)
    model.tie_weights()
    try:
        logits(model, PROMPT)
        model.save_pretrained(tmp_path)
    except Exception:
        pytest.skip("transformers cannot run it so, or save it")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"architectures": [name], "eos_token_id": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    params = SamplingParams(max_tokens=4, temperature=0.0)
    try:
        with LLM(str(tmp_path), **OPTIONS) as llm:
            [found] = llm.generate([TokensPrompt(PROMPT)], params)
    except UserError:
        return
    tokens = list(found.outputs[0].token_ids)
    rows = logits(model, [*PROMPT, *tokens])[len(PROMPT) - 1 : -1]
    gaps = rows.amax(-1) - rows[range(len(tokens)), tokens]
    assert (gaps <= 1e-4 * rows.abs().amax(-1)).all(), gaps  # choices may be near ties
