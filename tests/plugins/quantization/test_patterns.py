"""Regular expressions of strangers: common ones match as Python's do, hostile ones are refused."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hotshoe.errors import CheckpointError
from hotshoe_quantization import compressed, four_bits
from hotshoe_quantization.patterns import matches

LAYER = "model.layers.10.self_attn.q_proj"
COMMON = [
    r".*lm_head",
    r"model\.layers\.(0|1|10)\..*",
    r".*\.mlp\.(gate|up|down)_proj$",
    r".*layers\.\d+\.self_attn\.(q|k|v)_proj.*",
    r"^(?!.*self_attn).*",
    r".*\.layers\.\d+\..*\.experts\.[0-9]+\..*",
    r".*\.(?:q|k)?_proj",
    r"model\.layers\.(?:[0-9]|[1-5][0-9])\.self.*",
    r"(?i)MODEL.*(?P<part>q|k)_proj",
    r"model{,1}[.]l[^\]x]{5}.*",
]
HOSTILE = {
    r"(a+)+$": "repeats a group",
    r"(a|a)*$": "repeats a group",
    r"(.*)*x": "repeats a group",
    r"(?:a?){30}a{30}": "repeats a group",
    r"((a{9}){9}){9}": "repeats a group",
    r"(?=(a+))*b": "repeats a group",
    r"(?P<n>b+){2,}": "repeats a group",
    r".*.*.*.*.*.*x": "has 6 repeats, more than 5",
    r"\d*" * 13: "has 13 repeats, more than 12",
    "a" * 5000: "has 5000 characters",
}
CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
        }
    },
}
PIECES = ["a", r"\d", r"\w", ".", "[a-z]", "(", "(?:", ")", "|", "*", "+", "?", "{2,}", "(?=", "b"]


@pytest.mark.parametrize("pattern", COMMON)
def test_common_ones_match_as_they_are(pattern: str) -> None:
    for how in (re.match, re.search):
        assert matches(pattern, LAYER, how) == bool(how(pattern, LAYER))


@pytest.mark.parametrize("pattern", HOSTILE)
def test_hostile_ones_are_refused_by_name(pattern: str) -> None:
    said = HOSTILE[pattern]
    held = compressed.read(CONFIG | {"ignore": [f"re:{pattern}"]})
    with pytest.raises(CheckpointError, match=f"ignore holds the regular expression .*{said}"):
        held.storage(LAYER, (64, 64))
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {pattern: {}}}
    with pytest.raises(CheckpointError, match=f"dynamic holds the regular expression .*{said}"):
        four_bits.read_gptq(config).storage(LAYER, (64, 64))


@pytest.mark.parametrize("pattern", ["(", "a{2", "[", "(?P<a", "*", "a" + "(" * 300])
def test_malformed_ones(pattern: str) -> None:
    try:
        wanted = re.match(pattern, LAYER) is not None
    except re.error:
        with pytest.raises(CheckpointError, match="malformed regular expression"):
            compressed.read(CONFIG | {"ignore": [f"re:{pattern}"]}).storage(LAYER, (64, 64))
    else:
        assert matches(pattern, LAYER, re.match) == wanted


def test_names_that_no_layer_has_match_nothing() -> None:
    assert not matches(".*", "a" * 257, re.match)
    assert not matches(".*", "layers.1234567", re.match)


@given(st.lists(st.sampled_from(PIECES), max_size=16).map("".join))
def test_what_is_accepted_ends(pattern: str) -> None:
    """It would raise for taking more than 20 ms, or not end at all."""
    pattern += "!"
    try:
        re.compile(pattern)
    except re.error:
        assume(False)
    for text in ("a" * 50, LAYER + "a" * 20, "1" * 6):
        refusal = ""
        try:
            assert matches(pattern, text, re.match) == bool(re.match(pattern, text))
        except ValueError as error:
            refusal = str(error)
        assert "takes" not in refusal
