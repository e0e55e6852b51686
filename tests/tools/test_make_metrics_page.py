"""The page of metrics is what the table says."""

import re

import make_metrics_page

from hotshoe_observability import table


def test_the_page_is_current() -> None:
    text = make_metrics_page.PATH.read_text(encoding="utf-8")
    assert text == make_metrics_page.page(), "run `make reference`"


def test_every_metric_has_a_row() -> None:
    rows = re.findall(r"^\| `(hotshoe_\w+)` \|", make_metrics_page.page(), re.MULTILINE)
    assert rows == [metric.sample for metric in table.METRICS]


def test_names_of_vllm_are_there() -> None:
    page = make_metrics_page.page()
    assert "`vllm:generation_tokens_total`" in page
    assert "`vllm:time_to_first_token_seconds`" in page
