"""Every query of the dashboard finds what it asks for in what a server exposes."""

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hotshoe_observability.exposition import Snapshot, expose

DASHBOARD = json.loads(
    (Path(str(files("hotshoe_observability"))) / "dashboards/hotshoe.json").read_text()
)
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
FUNCTIONS = {"sum", "min", "max", "by", "rate", "increase", "histogram_quantile"}

_NAME = re.compile(r"[a-zA-Z_:][\w:]*")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}")
_GROUPING = re.compile(r"\bby \(([^)]*)\)")


def exposed(text: str) -> dict[str, set[str]]:
    """Return the label names of each sample name."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def check(query: str, there: dict[str, set[str]]) -> None:
    selectors = _SELECTOR.findall(query)
    assert selectors, query
    labels: set[str] = set()
    for name, matchers in selectors:
        assert name in there, f"{query}: no {name}"
        wanted = re.findall(r"(\w+)\s*=", matchers)
        assert set(wanted) <= there[name], query
        labels |= there[name]
    for grouping in _GROUPING.findall(query):
        assert {label.strip() for label in grouping.split(",")} <= labels, query
    rest = _GROUPING.sub(" by ", _SELECTOR.sub(" ", query)).replace("$__rate_interval", "")
    assert set(_NAME.findall(rest)) <= FUNCTIONS, rest
    assert query.count("(") == query.count(")")
    for name, _ in selectors:
        # Only what counts upwards has a rate; its name says so.
        counts = name.endswith(("_total", "_bucket", "_sum", "_count"))
        assert counts == bool(re.search(rf"(rate|increase)\({name}\b", query)), query


@pytest.mark.parametrize("query", QUERIES)
def test_queries(query: str, snapshot: Snapshot) -> None:
    check(query, exposed(expose([snapshot])[0].decode()))


def test_the_check_can_fail(snapshot: Snapshot) -> None:
    there = exposed(expose([snapshot])[0].decode())
    for query in (
        "sum(hotshoe_nothing{})",
        'sum(hotshoe_requests_running{color="red"})',
        "sum by (color) (hotshoe_requests_running{})",
        "sum(rate(hotshoe_requests_running{}[1m]))",
        "sum(hotshoe_steps_total{})",
        "sin(hotshoe_requests_running{})",
    ):
        with pytest.raises(AssertionError):
            check(query, there)


def test_every_panel_is_whole() -> None:
    assert len(PANELS) > 15
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in PANELS:
        assert panel["title"] and panel["description"].endswith(".")
        assert panel["targets"]
        assert panel["datasource"]["uid"] == "${datasource}"


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_the_variable_lists_models(snapshot: Snapshot) -> None:
    [model] = [v for v in DASHBOARD["templating"]["list"] if v["name"] == "model"]
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", model["query"]).groups()
    assert label in exposed(expose([snapshot])[0].decode())[name]
