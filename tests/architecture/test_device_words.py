"""Core and plugins ask what hardware can do, never which it is."""

import re

import pytest

WORD = re.compile(
    r"cuda|cudnn|cublas|nvidia|rocm|\bhip\b|_hip\b|\bxpu\b|\bmps\b|\bnpu\b|\btpu\b|oneapi|"
    r"\bamd\b|\bintel\b|avx|\bamx\b|\bneon\b|"
    r"\bis_(cpu|gpu|cuda|rocm|hip|xpu|tpu|mps|npu)\b|torch\.(xpu|mps|accelerator)",
    re.IGNORECASE,
)


def test_no_device_words_outside_platforms(sources) -> None:
    found = [
        f"{source.path}:{number}: {line.strip()}"
        for source in sources
        if source.path.startswith(("core/", "plugins/"))
        for number, line in enumerate(source.text.splitlines(), 1)
        if WORD.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line", ["torch.cuda.synchronize()", "if x.is_cuda:", '"hip"', "device == 'xpu'", "use_AVX512"]
)
def test_the_pattern_finds_them(line: str) -> None:
    assert WORD.search(line)


@pytest.mark.parametrize("line", ["a chip", "shipped", "maximum", "hidden", "family", "damped"])
def test_the_pattern_leaves_words_alone(line: str) -> None:
    assert not WORD.search(line)
