"""How a checkpoint wants one vector made of a prompt, as data: `modules.json` and what it names for
embeddings, config.json for classes.

Sources of the formats: the files that sentence-transformers writes beside a model; the fields that
transformers' classes `*ForSequenceClassification` read, and those of vLLM's overrides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from hotshoe.errors import CheckpointError
from hotshoe.models.config import ModelConfig, read_json
from hotshoe.models.files import MIB, parse_json, read_text
from hotshoe.types.classes import Classifier
from hotshoe.types.pooling import Activation, Pooling, PoolingKind

MODULES = "modules.json"
MAX_BYTES = MIB
#: The two spellings of a pooling configuration: one word, or a flag for each mode.
_MODES: dict[str, PoolingKind] = {
    "lasttoken": "last",
    "mean": "mean",
    "cls": "cls",
    "max": "max",
    "weightedmean": "weighted_mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
}
_FLAGS = {
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}
#: Of a model that does not say how many classes it has.
NUM_LABELS = 2
#: How classes end whose one class is a reward, unless the file says otherwise.
REWARD = "ForRewardModel"
OF_REWARDS = {"num_labels": 1, "problem_type": "regression"}
MAX_LABELS = 2**16
#: The tokens of an output matrix whose logits are those of the classes, as overrides name them.
FROM_TOKEN = "classifier_from_token"
#: Overrides that make one class of two such tokens, whose logit is their difference.
DIFFERENCE = "from_2_way_softmax"
#: The module of vectors that have an entry for each word; its defaults, which alone are served.
WORDS_POOLING = "SpladePooling"
WORDS_DEFAULTS = {"pooling_strategy": "max", "activation_function": "relu"}
#: How classes end that have a head for words, and one that has such vectors whatever modules say.
MASKED, SPARSE = "ForMaskedLM", "SparseEmbeddingModel"
_PROBLEMS: dict[str, Activation | None] = {
    "regression": None,
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
#: Classes of modules that cross-encoders name.
_MODULES: dict[str, Activation | None] = {
    "Identity": None,
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
}


def read_pooling(path: Path) -> Pooling | None:
    """Read how the model in a directory pools; None for one that makes no vectors.

    Raises:
        CheckpointError: A file is malformed, or asks for a module that is not served here.
    """
    kind: PoolingKind | None = None
    normalize = False
    for module in read_modules(path):
        name = module_name(module)
        if name == "Pooling":
            kind = _read_kind(path, str(module.get("path", "")))
        elif name == "Normalize":
            normalize = True
        elif name not in ("Transformer", "Dense"):
            raise CheckpointError(
                f"{path / MODULES} names a module {name!r}; served are Transformer, Pooling, Dense "
                "and Normalize, so vectors of this model would be wrong"
            )
    return None if kind is None else Pooling(kind, normalize)


def pools_words(path: Path) -> bool:
    """Tell whether a model's vectors have an entry for each word, as its modules say."""
    return any(module_name(module) == WORDS_POOLING for module in read_modules(path))


def pooling_of_words(config: ModelConfig) -> Pooling | None:
    """Return how a model pools whose vectors have an entry for each word; None for others.

    Raises:
        CheckpointError: Its modules ask for another form than the largest entry, or the model has
            no head for words.
    """
    if config.architecture.endswith(SPARSE):
        return Pooling("max", False)
    modules = {module_name(module): module for module in read_modules(config.path)}
    if WORDS_POOLING not in modules:
        return None
    where = config.path / MODULES
    if not config.architecture.endswith(MASKED):
        raise CheckpointError(
            f"{where} names {WORDS_POOLING}, but {config.architecture} has no head for words"
        )
    if others := modules.keys() - {"MLMTransformer", WORDS_POOLING, "Normalize"}:
        raise CheckpointError(f"{where} names a module {min(others)!r} beside {WORDS_POOLING}")
    place = inside(config.path, str(modules[WORDS_POOLING].get("path", ""))) / "config.json"
    values = read_json(place)
    for key, served in WORDS_DEFAULTS.items():
        if values.get(key, served) != served:
            raise CheckpointError(f"{place}: {key} is {values[key]!r}, but {served!r} is served")
    return Pooling("max", "Normalize" in modules)


def pooling_of_file(config: ModelConfig) -> Pooling | None:
    """Return how a model that is a file makes vectors, which it says as `pooling`; None for none.

    Such vectors have a length of 1.
    """
    kind = config.values.get("pooling") if config.file is not None else None
    return Pooling(cast(PoolingKind, kind)) if kind in _MODES.values() else None


def module_name(module: Mapping[str, Any]) -> str:
    """Return the name of a module's class, without the package that it is in."""
    return str(module.get("type", "")).rpartition(".")[2]


def read_modules(directory: Path) -> list[dict[str, Any]]:
    """Return the modules of a directory, in order; none without the file.

    Raises:
        CheckpointError: It is malformed.
    """
    path = directory / MODULES
    if not path.is_file():
        return []
    try:
        modules = parse_json(read_text(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise CheckpointError(f"{path} must hold a JSON list of objects")
    return modules


def inside(path: Path, folder: str) -> Path:
    """Return a folder of a model directory.

    Raises:
        CheckpointError: It lies elsewhere.
    """
    place = path / folder
    if not place.resolve().is_relative_to(path.resolve()):
        raise CheckpointError(f"{path / MODULES} names {folder!r}, which lies outside the model")
    return place


def _read_kind(path: Path, folder: str) -> PoolingKind:
    place = inside(path, folder) / "config.json"
    values = read_json(place)
    if values.get("include_prompt", True) is not True:
        raise CheckpointError(
            f"{place}: include_prompt is {values['include_prompt']!r}, but instructions are pooled "
            "with the text here"
        )
    asked = [values["pooling_mode"]] if "pooling_mode" in values else []
    asked += [_FLAGS.get(k, k) for k, v in values.items() if k.startswith("pooling_mode_") and v]
    if len(asked) != 1 or asked[0] not in _MODES:
        raise CheckpointError(
            f"{place} asks for pooling {', '.join(map(str, asked)) or 'of no kind'}; served is one "
            f"of {', '.join(_MODES)}"
        )
    return _MODES[asked[0]]


def read_classifier(config: ModelConfig) -> Classifier:
    """Read what the classes of a model with a head for these are.

    Raises:
        CheckpointError: A field is malformed, or asks for an activation that is not served here.
    """
    if config.architecture.endswith(REWARD):
        config = replace(config, values={**OF_REWARDS, **config.values})
    labels = _read_labels(config)
    separated = config.get("use_sep_token", config.get(FROM_TOKEN) is None)
    return Classifier(labels, _read_activation(config, len(labels)), separated is not False)


def class_tokens(config: ModelConfig) -> list[str | int]:
    """Return the tokens whose logits are those of the classes; none where a matrix of their own is.

    Raises:
        CheckpointError: They are no tokens.
    """
    found = config.get(FROM_TOKEN, [])
    if not isinstance(found, list) or not all(type(x) in (str, int) for x in found):
        raise CheckpointError(f"config.json: {FROM_TOKEN} must list tokens, not {found!r}")
    return found


def takes_difference(config: ModelConfig) -> bool:
    """Tell whether the one class is the difference of two tokens, such as "no" and "yes"."""
    two = len(class_tokens(config)) == 2
    return two and (
        config.get("is_original_qwen3_reranker") is True or config.get("method") == DIFFERENCE
    )


def _read_labels(config: ModelConfig) -> tuple[str, ...]:
    tokens = class_tokens(config)
    if tokens:
        return ("LABEL_0",) if takes_difference(config) else tuple(map(str, tokens))
    named = config.get("id2label", {})
    count = config.size("num_labels", len(named) or NUM_LABELS)
    if count > MAX_LABELS:
        raise CheckpointError(f"config.json: {count} classes, but there may be {MAX_LABELS}")
    if len(named) != count:
        return tuple(f"LABEL_{i}" for i in range(count))
    wanted = [str(i) for i in range(count)]
    if not isinstance(named, Mapping) or set(named) != set(wanted):
        raise CheckpointError(
            f"config.json: id2label must name the classes by their numbers, 0 to {count - 1}"
        )
    return tuple(str(named[i]) for i in wanted)


def _read_activation(config: ModelConfig, count: int) -> Activation | None:
    own = config.get("sentence_transformers")
    own = own.get("activation_fn") if isinstance(own, Mapping) else None
    module = own or config.get("sbert_ce_default_activation_function")
    if module is not None:
        name = str(module).rpartition(".")[2]
        if name not in _MODULES:
            raise CheckpointError(
                f"config.json asks for activation {module!r}; served are {', '.join(_MODULES)}"
            )
        return _MODULES[name]
    problem = config.get("problem_type", "single_label_classification")
    if not isinstance(problem, str) or problem not in _PROBLEMS:
        raise CheckpointError(
            f"config.json: problem_type {problem!r} is unknown; known: {', '.join(_PROBLEMS)}"
        )
    found = _PROBLEMS[problem]
    return "sigmoid" if found == "softmax" and count == 1 else found
