"""Calls with tags around arguments: samples of every format, in every two pieces."""

from hotshoe_parsers.xml_calls import FORMATS


def test_samples(check_sample, sample) -> None:
    check_sample(FORMATS[sample.get("format", "qwen3_xml")], sample)


def test_a_grammar_says_how_each_value_is_written() -> None:
    properties = {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", 1]},
    }
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    found = FORMATS["deepseek_v32"]
    assert found.calls is not None
    [call] = found.calls({"get_weather": schema}).tags
    key, end = '<｜DSML｜parameter name="', "</｜DSML｜parameter>"
    assert call.content == [
        {"text": f'{key}city"'},
        {"text": ' string="true">'},
        {"until": end},
        {"text": "\n"},
        {"text": f'{key}days"'},
        {"text": ' string="false">'},
        {"schema": {"type": "integer"}},
        {"text": end},
        {"text": "\n"},
        {"text": f'{key}unit"'},
        {
            "either": [
                [{"text": f' string="true">C{end}'}],
                [{"text": f' string="false">1{end}'}],
            ]
        },
        {"text": "\n"},
        {"text": "</｜DSML｜invoke>"},
    ]
