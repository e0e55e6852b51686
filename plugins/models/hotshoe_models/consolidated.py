"""Models in Mistral's own form: params.json, consolidated*.safetensors and tekken.json.

The answer to hook `hotshoe_model_files`. Configuration and names are mapped to those of config.json
by tables; the architectures are the ones that serve such files. Where both forms lie in a
directory, the one of config.json is read.

Sources: transformers' conversion of Ministral 3, and published files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.errors import CheckpointError
from hotshoe.models.config import read_json
from hotshoe.models.files import MIB, read_text
from hotshoe.models.model_file import TokenizerParts

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hotshoe.layers import WeightFormat
    from hotshoe.loader.sources import Files, Stored, TensorSource

PARAMS, WEIGHTS, TEMPLATE = "params.json", "consolidated*.safetensors", "chat_template.jinja"
#: The greatest length of a file that does not say it.
LENGTH = 128_000
#: A key that no config.json has: each expert's matrices have names, also where they are plain.
NAMED = "experts_are_named"
#: Keys of config.json, and those of params.json that mean the same.
KEYS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "intermediate_size": "hidden_dim",
    "rms_norm_eps": "norm_eps",
    "vocab_size": "vocab_size",
    "head_dim": "head_dim",
    "tie_word_embeddings": "tied_embeddings",
    **{
        key: key
        for key in (
            *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
            *("rope_theta", "sliding_window", "bos_token_id", "eos_token_id"),
        )
    },
}
#: Keys under `moe`: of experts behind one another, and of those with a shared one.
MIXTRAL = {"num_local_experts": "num_experts", "num_experts_per_tok": "num_experts_per_tok"}
LATENT = {
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "n_shared_experts": "num_shared_experts",
    "moe_intermediate_size": "expert_hidden_dim",
    "first_k_dense_replace": "first_k_dense_replace",
    "routed_scaling_factor": "routed_scale",
    "n_group": "num_expert_groups",
    "topk_group": "num_expert_groups_per_tok",
}
YARN = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta_fast": "beta",
    "beta_slow": "alpha",
}
SELF = "self_attn."
#: Names of params.json's form, and those of config.json's.
RENAMES = tuple(
    (re.compile(pattern), name)
    for pattern, name in {
        r"^tok_embeddings\.": "model.embed_tokens.",
        r"^norm\.": "model.norm.",
        r"^output\.": "lm_head.",
        r"^layers\.": "model.layers.",
        r"\.attention_norm\.": ".input_layernorm.",
        r"\.ffn_norm\.": ".post_attention_layernorm.",
        r"\.attention\.w(q|kv)_(a|b)\.": rf".{SELF}\1_\2_proj.",
        r"\.attention\.wkv_a_with_mqa\.": f".{SELF}kv_a_proj_with_mqa.",
        r"\.attention\.(q|kv)_a_norm\.": rf".{SELF}\1_a_layernorm.",
        r"\.attention\.w(q|k|v|o)\.": rf".{SELF}\1_proj.",
        r"(\.\d+\.)(feed_forward\.)?(gate|experts|shared_experts)\.": r"\1mlp.\3.",
        r"\.feed_forward\.": ".mlp.",
        r"\.qscale_weight$": ".weight_scale",
        r"\.qscale_act$": ".input_scale",
    }.items()
)
#: Of matrices of an MLP, and of experts but Mixtral's, which keep their names.
MATRICES = tuple(
    (re.compile(rf"\.{own}\."), f".{name}_proj.")
    for own, name in {"w1": "gate", "w2": "down", "w3": "up"}.items()
)
PAIRS = re.compile(r"\.([qk])_proj\.(weight|bias)$")
#: Tensors of other parts than texts, and scales of a cache that nobody stores so.
UNREAD = re.compile(
    r"^(vision_encoder|vision_language_adapter|patch_merger|pre_mm_projector_norm|mm_whisper\w*|"
    r"mm_streams_embeddings|audio_\w+)\.|_fake_quantizer\."
)


class MistralModel:
    """See `hotshoe.models.model_file.ModelFile`; `path` is that of params.json."""

    def __init__(self, path: Path) -> None:
        self._path, self._params = path, read_json(path)
        self._config = self._mapped()

    def config(self) -> Mapping[str, Any]:
        """See `ModelFile.config`."""
        return self._config

    def tokenizer(self) -> TokenizerParts:
        """See `ModelFile.tokenizer`."""
        from hotshoe.text.tekken_file import FILE, tekken_parts

        parts, template = tekken_parts(self._path.with_name(FILE)), self._path.with_name(TEMPLATE)
        if not template.exists():
            return parts
        text = read_text(template, MIB)
        return TokenizerParts(parts.model, {**parts.config, "chat_template": text})

    def paths(self) -> list[Path]:
        """See `ModelFile.paths`."""
        from hotshoe.loader.files import natural_key

        return sorted(self._path.parent.glob(WEIGHTS), key=natural_key)

    def weights(self, dtype: torch.dtype) -> TensorSource:
        """See `ModelFile.weights`."""
        from hotshoe.loader.sources import Files

        paths = self.paths()
        if not paths:
            raise CheckpointError(f"{self._path.parent} holds no {WEIGHTS}; fetch the checkpoint's")
        return _Renamed(Files(paths), self._config)

    def format(self) -> WeightFormat:
        """See `ModelFile.format`: files that are quantized say so in their configuration."""
        from hotshoe.layers.formats import PLAIN

        return PLAIN

    def _mapped(self) -> dict[str, Any]:
        """Return what config.json would hold; raises `CheckpointError` for what is not read."""
        params = self._params
        values = {key: params[own] for key, own in KEYS.items() if params.get(own) is not None}
        values |= {"bos_token_id": 1, "eos_token_id": 2, "dtype": "bfloat16"} | values
        values["max_position_embeddings"] = (
            params.get("max_position_embeddings") or params.get("max_seq_len") or LENGTH
        )
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
            if key not in values:
                raise self._refuse(KEYS[key], "is missing; fetch the file again")
        values |= self._windows(values) | self._rotation(values) | self._quantization()
        experts = self._object("moe")
        latent = values.get("kv_lora_rank") is not None
        keys = (LATENT if latent else MIXTRAL) if experts else {}
        values |= {key: experts[own] for key, own in keys.items() if experts.get(own) is not None}
        if latent and not experts:
            values["first_k_dense_replace"] = values["num_hidden_layers"]
        if not latent and experts.get("num_shared_experts"):
            raise self._refuse("moe", "has a shared expert without latent attention: not read")
        grows = "llama_4_scaling_beta" in values.get("rope_parameters", {})
        names = {True: "Mistral4", False: "Ministral3" if grows else "Mistral"}
        name = "Mixtral" if experts and not latent else names[latent]
        if grows and name == "Mixtral":
            raise self._refuse("llama_4_scaling", "is not read beside experts of one kind")
        return {**values, "architectures": [f"{name}ForCausalLM"], NAMED: True}

    def _windows(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Say which layers have a window, where a list of windows repeats."""
        windows = values.get("sliding_window")
        if not isinstance(windows, list):
            return {"sliding_window": None if windows is None else self._whole(windows)}
        count = values["num_hidden_layers"]
        sizes = {self._whole(window) for window in windows if window is not None}
        if len(sizes) != 1 or type(count) is not int or count % len(windows):
            raise self._refuse("sliding_window", "must be windows of one size, in whole periods")
        kinds = ["full_attention" if w is None else "sliding_attention" for w in windows]
        repeated = kinds * (count // len(windows))
        return {"sliding_window": sizes.pop(), "layer_types": repeated}

    def _whole(self, value: Any) -> int:
        try:
            return int(value)  # which some files write as text
        except (TypeError, ValueError, OverflowError):
            raise self._refuse("sliding_window", f"is {value!r:.40}, no number of tokens") from None

    def _rotation(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the rotation by config.json's keys."""
        yarn, grows = self._object("yarn"), self._object("llama_4_scaling")
        # Files of the first models, which have a window, say nothing of their rotation.
        theta = values.pop("rope_theta", 1e6 if values.get("sliding_window") is None else 1e4)
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
        if yarn:
            rope |= {key: yarn[own] for key, own in YARN.items() if yarn.get(own) is not None}
            rope["rope_type"] = "yarn"
            if yarn.get("apply_scale", True) is False:
                rope |= {"mscale": 1.0, "mscale_all_dim": 1.0}
        if grows:
            key = "original_max_position_embeddings"
            if not yarn or grows.get(key) != yarn.get(key):
                raise self._refuse("llama_4_scaling", f"needs a yarn of the same {key}")
            rope["llama_4_scaling_beta"] = grows.get("beta")
        return {"rope_parameters": rope}

    def _quantization(self) -> dict[str, Any]:
        """Return how matrices are quantized, by config.json's keys."""
        given = self._object("quantization")
        if not given:
            return {}
        scheme = given.get("qscheme_act")
        if given.get("qformat_weight") != "fp8_e4m3" or scheme not in (None, "TENSOR", "NO_SCALES"):
            why = "is read with qformat_weight fp8_e4m3 and qscheme_act TENSOR or NO_SCALES alone"
            raise self._refuse("quantization", f"{why}; fetch the files of config.json")
        kind = "dynamic" if scheme == "NO_SCALES" else "static"
        return {"quantization_config": {"quant_method": "fp8", "activation_scheme": kind}}

    def _object(self, key: str) -> Mapping[str, Any]:
        value = self._params.get(key) or {}
        if not isinstance(value, Mapping):
            raise self._refuse(key, "must be an object")
        return value

    def _refuse(self, key: str, why: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {key} {why}")


class _Renamed:
    """The files' tensors by the names of config.json's form; those of no text are left out.

    Rows of q and k lie pair by pair, as they are rotated; here the first numbers of pairs come
    before the second ones.
    """

    def __init__(self, source: Files, config: Mapping[str, Any]) -> None:
        self._source, self._config = source, config
        mixtral = config["architectures"] == ["MixtralForCausalLM"]
        renames = RENAMES if mixtral else (*RENAMES, *MATRICES)
        self._home: dict[str, str] = {}
        for name in source.names():
            if UNREAD.search(name) is None:
                known = name
                for pattern, other in renames:
                    known = pattern.sub(other, known)
                self._home[known] = name
        self._turned = "kv_lora_rank" not in config

    def names(self) -> Iterable[str]:
        """Return the new names, in the files' order."""
        return list(self._home)

    def tensor(self, name: str) -> Tensor:
        """Return a view of a file, or rows in another order."""
        found = self._source.tensor(self._home[name])
        part = PAIRS.search(name)
        if part is None or not self._turned:
            return found
        key = "num_attention_heads" if part[1] == "q" else "num_key_value_heads"
        heads = self._config.get(key, self._config["num_attention_heads"])
        if type(heads) is not int or heads < 1 or len(found) % (2 * heads):
            raise CheckpointError(
                f"{self._home[name]} has {len(found)} rows, which are not those of {heads} heads; "
                f"{PARAMS} and files do not belong together"
            )
        rest = found.shape[1:]
        return found.reshape(heads, -1, 2, *rest).transpose(1, 2).reshape(found.shape)

    def taken(self, name: str) -> None:
        """Let go of a file's pages."""
        self._source.taken(self._home[name])

    def stored(self, name: str) -> Stored:
        """Return type and size in the file."""
        return self._source.stored(self._home[name])


class MistralFormat:
    """See `hotshoe.models.model_file.ModelFileFormat`."""

    def choose(self, names: Sequence[str], variant: str | None) -> str | None:
        """See `ModelFileFormat.choose`; such a model has no variants."""
        own = PARAMS in names and "config.json" not in names
        return PARAMS if own and variant is None else None

    def open(self, path: Path) -> MistralModel:
        """See `ModelFileFormat.open`.

        Raises:
            CheckpointError: It is another file of JSON.
        """
        if path.name != PARAMS:
            raise CheckpointError(f"{path} is no {PARAMS}; give the directory that it lies in")
        return MistralModel(path)


FORMAT = MistralFormat()
