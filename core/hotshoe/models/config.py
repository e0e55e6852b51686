"""A model directory's configuration: config.json as data, with the few facts the engine needs.

Read without transformers, so that start-up stays short; architectures interpret their own keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.errors import CheckpointError
from hotshoe.models.composites import KEY as TEXT
from hotshoe.models.composites import text_values
from hotshoe.models.files import MIB, parse_json, read_text

if TYPE_CHECKING:
    from hotshoe.models.model_file import ModelFile

#: The longest JSON file of a model directory that is read.
MAX_JSON_BYTES = 16 * MIB
#: Of a file that does not say; older ones say `n_positions`.
MAX_LEN = 2048
#: Keys of a text's greatest length, the usual one first.
LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "model_max_length",
    "seq_length",
)
#: No size of a model that exists comes near; larger ones would take minutes to be found too large.
MAX_SIZE = 2**24
_MOST = {
    **dict.fromkeys(("num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers"), 1000),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 2**14),
    **dict.fromkeys(("moe_num_experts", "zero_expert_num", "num_attention_heads"), 2**14),
}
#: Numbers in an object of one entry, `__float__`.
FLOATS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}
#: Types that weights are stored in; not every one can be computed in.
WEIGHT_TYPES = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")
#: Types of rotary scaling that reach `factor` times beyond a length, and the key of that length.
STRETCHED = {
    "dynamic": "max_position_embeddings",
    "linear": "max_position_embeddings",
    "yarn": "original_max_position_embeddings",
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What config.json says about a model, as data.

    Attributes:
        path: The model directory, or the file that is the model.
        architecture: First of `architectures`.
        values: All of config.json with the overrides; entries of `text_config` are at the top, too.
        dtype: The checkpoint's element type; "float32" if it names none.
        max_model_len: Tokens of the longest sequence by default: `max_position_embeddings`.
        eos_token_ids: From generation_config.json, else from config.json.
        file: The model, if it is a file that a plugin reads; None for a directory.
        whole_prompts: A step takes all of a prompt, as its tokens see later ones.
    """

    path: Path
    architecture: str
    values: Mapping[str, Any]
    dtype: str
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    file: ModelFile | None = None
    whole_prompts: bool = False

    @classmethod
    def load(
        cls,
        path: Path,
        overrides: Mapping[str, Any] | None = None,
        file: ModelFile | None = None,
        lengths: Mapping[str, int] | None = None,
        encoders: Mapping[str, int] | None = None,
    ) -> ModelConfig:
        """Read a model directory, or what a file says of itself.

        Args:
            path: Of the directory or the file.
            overrides: Entries that replace those of config.json.
            file: What a plugin read of a file.
            lengths: By architecture, for files that say none.
            encoders: Architectures that take whole prompts, and positions that no token has.

        Raises:
            CheckpointError: No directory, no or malformed config.json.
        """
        if file is None:
            _check_place(path)
        found = read_json(path / "config.json") if file is None else file.config()
        overrides = overrides or {}
        values = text_values(merged(found, overrides))
        values = merged(values, {k: v for k, v in overrides.items() if k != TEXT})
        names = values.get("architectures")
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise CheckpointError(
                f"{path / 'config.json'} names no architecture: its field 'architectures' must be "
                'a list of names, such as ["LlamaForCausalLM"]; fetch the file of the checkpoint'
            )
        trained = _trained_len(values, (lengths or {}).get(names[0], MAX_LEN))
        offsets = encoders or {}
        return cls(
            path,
            names[0],
            values,
            _weight_type(values.get("dtype") or values.get("torch_dtype")),
            max(trained - offsets.get(names[0], 0), 1),
            eos_token_ids(path, values),
            file,
            names[0] in offsets,
        )

    @property
    def longest_len(self) -> int:
        """The longest sequence that may be asked for.

        Files with scaled rotary embeddings often name the length before scaling.
        """
        rope = self.get("rope_scaling") or self.get("rope_parameters")
        if not isinstance(rope, Mapping):
            return self.max_model_len
        key = STRETCHED.get(str(rope.get("rope_type") or rope.get("type")), "")
        factor, length = rope.get("factor"), rope.get(key) or self.get(key)
        if not isinstance(factor, (int, float)) or not isinstance(length, int):
            return self.max_model_len
        if not 0 < factor < MAX_SIZE:
            return self.max_model_len
        return max(self.max_model_len, int(factor * length))

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value of config.json; null counts as absent."""
        value = self.values.get(name)
        return default if value is None else value

    def require(self, name: str) -> Any:
        """Return a value that must be there.

        Raises:
            CheckpointError: It is not.
        """
        value = self.values.get(name)
        if value is None:
            raise CheckpointError(f"{self.path / 'config.json'} lacks {name!r}")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        """Return a positive integer; required when there is no default."""
        if default is None:
            self.require(name)
            default = 0
        return _positive(self.values, name, default)


def _trained_len(values: Mapping[str, Any], default: int) -> int:
    """Return the longest sequence of training, by whichever key the file has for it."""
    found = next((key for key in LENGTHS if values.get(key) is not None), LENGTHS[0])
    return _positive(values, found, default)


def _check_place(path: Path) -> None:
    """Refuse what is no model directory, in the words for what it is instead.

    Raises:
        CheckpointError: It is none.
    """
    try:
        if (path / "config.json").exists():
            return
        files = sorted(path.glob("*.gguf")) if path.is_dir() else [path] if path.is_file() else []
    except OSError as error:  # no permission, or no name that a file can have
        raise CheckpointError(f"{str(path)[:200]} cannot be read: {error.strerror}") from None
    for file in files:
        raise CheckpointError(
            f"{file} is a file of a kind that no plugin reads (hotshoe-models reads .gguf); give "
            "the directory that the checkpoint lies in"
        )
    if not path.is_dir():
        raise CheckpointError(
            f"no model at {path}: give a local directory with config.json and safetensors files, "
            "or a name: with hotshoe-demo installed demo, with hotshoe-hub ORGANIZATION/MODEL "
            "(`hotshoe plugins` lists what is)"
        )
    raise CheckpointError(
        f"{path / 'config.json'} is missing; a model's directory holds config.json, "
        "tokenizer.json and *.safetensors files"
    )


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        CheckpointError: Missing, no regular file, longer than `max_bytes`, or not an object.
    """
    try:
        values = parse_json(read_text(path, max_bytes), special_float)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; fetch it again") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return values


def eos_token_ids(directory: Path, values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the tokens that end a text: as generation_config.json says, else config.json's values.

    Raises:
        CheckpointError: They are no token ids.
    """
    path = directory / "generation_config.json"
    found = read_json(path).get("eos_token_id") if path.exists() else None
    found = values.get("eos_token_id") if found is None else found
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(i) is int and i >= 0 for i in ids):
        raise CheckpointError(f"eos_token_id must be a token id or a list of them, not {found!r}")
    return tuple(ids)


def merged(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with overrides applied; nested objects are merged, not replaced."""
    result = dict(values)
    for key, value in overrides.items():
        old = result.get(key)
        nested = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if nested else value  # type: ignore[arg-type]
    return result


def _weight_type(value: Any) -> str:
    name = str(value).removeprefix("torch.") if value else "float32"
    if name not in WEIGHT_TYPES:
        raise CheckpointError(
            f"config.json: dtype {value!r} is no type of weights; known: {', '.join(WEIGHT_TYPES)}"
        )
    return name


def special_float(value: dict[str, Any]) -> Any:
    """Return the number that an object stands for, as transformers writes those that JSON lacks."""
    named = value.get("__float__") if len(value) == 1 else None
    return FLOATS.get(named, value) if isinstance(named, str) else value


def _positive(values: Mapping[str, Any], name: str, default: int) -> int:
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise CheckpointError(f"config.json: {name} must be a positive integer, not {value!r}")
    high = _MOST.get(name, MAX_SIZE)
    if value > high:
        raise CheckpointError(f"config.json: {name} must be at most {high}, as in any real model")
    return value
