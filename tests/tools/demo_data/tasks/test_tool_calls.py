"""Calls name an offered tool, and their arguments fit its description and the request."""

from demo_data.tasks import tool_calls
from demo_data.tasks.catalogue import CATALOGUE
from demo_data.words import spoken

TYPES = {"string": str, "integer": int, "number": float, "boolean": bool}


def function(tool: dict) -> dict:
    return tool.get("function", tool)


def test_one_call_of_an_offered_tool(worlds) -> None:
    for world in worlds(500):
        made, expected = tool_calls.tool_case(world)
        offered = {function(tool)["name"]: function(tool) for tool in made.tools}
        assert len(offered) == len(made.tools)
        (call,) = expected
        properties = offered[call["name"]]["parameters"]["properties"]
        for name, value in call["arguments"].items():
            assert type(value) is TYPES[properties[name]["type"]]
            assert value in properties[name].get("enum", [value])
            assert spoken(value) in made.messages[0]["content"]


def test_results_are_reported_value_by_value(worlds) -> None:
    for world in worlds(200):
        tool = tool_calls.catalogue_tool(world)
        result, said = tool_calls.answer_from_result(world, tool)
        assert all(spoken(value) in said for value in result.values())


def test_two_calls_ask_for_both(worlds) -> None:
    twice = 0
    for world in worlds(300):
        made = tool_calls.two_calls(world)
        calls = made.messages[1].get("tool_calls", [])
        twice += len(calls) == 2
        for call in calls:
            for value in call["function"]["arguments"].values():
                assert spoken(value) in made.messages[0]["content"]
    assert twice > 200


def test_a_missing_tool_is_not_called(worlds) -> None:
    refused = 0
    for world in worlds(100):
        made = tool_calls.no_fitting_tool(world)
        refused += made.messages[-1]["content"] == tool_calls.NO_TOOL
    assert refused > 60


def test_requests_of_the_catalogue_use_known_parameters() -> None:
    for kind in CATALOGUE:
        count = len(kind.parameters)
        for request in kind.requests:
            assert request.format(*range(count)), kind.names
            assert f"{{{count}}}" not in request
