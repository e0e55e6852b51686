"""A second start takes weights that the first one has quantized, and answers alike."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import ConfigError

PROMPT = TokensPrompt([(7 * i * i) % 251 for i in range(20)])
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def answer(llm: LLM) -> list[int]:
    return list(llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids)


@pytest.mark.parametrize("method", ["int4", "int4_mixed"])
def test_a_second_start_quantizes_nothing(
    open_llm: Callable[..., LLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    with open_llm(quantization=method) as llm:
        plain = answer(llm)
    options = {"quantization": method, "quantization_cache_dir": str(tmp_path / "kept")}
    with open_llm(**options) as llm:
        assert answer(llm) == plain
    kept = sorted((tmp_path / "kept").iterdir())
    assert kept

    def fail(*arguments: object) -> None:
        raise AssertionError("quantized again")

    monkeypatch.setattr("hotshoe_quantization.online.quantized_groups", fail)
    with open_llm(**options) as llm:
        assert answer(llm) == plain
    assert sorted((tmp_path / "kept").iterdir()) == kept


@pytest.mark.parametrize("platform", ["plain"])
def test_where_nothing_would_be_kept_the_option_is_refused(
    open_llm: Callable[..., LLM], tmp_path: Path
) -> None:
    path = str(tmp_path)
    with pytest.raises(ConfigError, match="what --quantization makes"):
        open_llm(quantization_cache_dir=path)
    with pytest.raises(ConfigError, match="keeps nothing of int8"):
        open_llm(quantization_cache_dir=path, quantization="int8")
