"""Chat templates render as transformers renders them, and messages on their way into one."""

import pytest

from hotshoe.errors import CheckpointError, ConfigError, RequestError
from hotshoe.text import Tokenizer
from hotshoe.text.chat_template import read_template, template_message

CHATML = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim }}\n"
    "    {{- '<|im_end|>\\n' -}}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n"
)
TOOLS = """{{ bos_token }}{% set ns = namespace(system='', index=0) %}
{% if messages[0].role == 'system' %}
    {% set ns.system = messages[0].content %}
{% endif %}
{% macro show(tool) %}
* {{ tool.function.name }}: {{ tool | tojson }}
{% endmacro %}
{% if tools is not none and tools %}
  # Tools of "{{ ns.system }}"
  {% for tool in tools %}
{{ show(tool) }}
{{ tool | tojson(indent=2) }}{{ tool.function | tojson(sort_keys=true, separators=(',', ':')) }}
  {% endfor %}
{% else %}
No tools.
{% endif %}
{% for message in messages if message.role != 'system' %}
  {% if message.role == 'skip' %}{% continue %}{% endif %}
  {% if loop.index0 > 8 %}{% break %}{% endif %}
<{{ message.role }}>{{ message.get('content') or '' }}
  {% for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}
  {# a comment #}
{% endfor %}
{{ eos_token }}{{ unk_token is defined }}{{ documents is none }}
"""
GENERATION = """{% for m in messages %}
{% if m.role == 'assistant' %}
{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}
{% else %}
[{{ m.role | upper }}] {{ m.content }} {{ m.content | length }}
{% endif %}
{% endfor %}
{{ strftime_now('%Y') | length }} {{ enable_thinking }} {{ 'yes' if add_generation_prompt }}"""
STRICT = """{% for m in messages %}
{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate') }}
{% endif %}
{{ m.role }}: {{ m.content }}
{% endfor %}"""

TOOL = {
    "type": "function",
    "function": {"name": "wetter", "description": "<b>größer</b> & 'so'", "parameters": {}},
}
CONVERSATIONS = [
    [{"role": "user", "content": "  Hello <b>& ünïcode 🙂\n"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What's the weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "wetter", "arguments": {"Ort": "Köln"}}}],
        },
        {"role": "skip", "content": "never shown"},
        {"role": "tool", "content": '{"t": 3}'},
        {"role": "assistant", "content": "Cold."},
        {"role": "user", "content": "Thanks"},
    ],
]
TEMPLATES = {"chatml": CHATML, "tools": TOOLS, "generation": GENERATION}


@pytest.mark.parametrize("place", ["config", "file", "list"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_same_text_as_transformers(make_directory, name, place):
    transformers = pytest.importorskip("transformers")
    template = TEMPLATES[name]
    placed = {
        "config": lambda: make_directory(config={"chat_template": template}),
        "file": lambda: make_directory(
            config={"chat_template": "wrong"}, **{"chat_template.jinja": template}
        ),
        "list": lambda: make_directory(
            config={
                "chat_template": [
                    {"name": "default", "template": template},
                    {"name": "tool_use", "template": "T" + template},
                ]
            }
        ),
    }
    directory = placed[place]()
    ours = Tokenizer.load(directory)
    theirs = transformers.AutoTokenizer.from_pretrained(str(directory))
    for messages in CONVERSATIONS:
        for tools in (None, [TOOL]):
            for prompt in (True, False):
                expected = theirs.apply_chat_template(
                    messages,
                    tools=tools,
                    add_generation_prompt=prompt,
                    tokenize=False,
                    enable_thinking=False,
                )
                got = ours.apply_chat_template(messages, tools, prompt, enable_thinking=False)
                assert got == expected and expected


def test_bad_messages_and_templates_are_refused_by_name(make_directory):
    strict = Tokenizer.load(make_directory(config={"chat_template": STRICT}))
    assert strict.apply_chat_template([{"role": "user", "content": "a"}]) == "user: a\n"
    with pytest.raises(RequestError, match="Roles must alternate"):
        strict.apply_chat_template([{"role": "tool", "content": "a"}])
    chatml = Tokenizer.load(make_directory(config={"chat_template": CHATML}))
    with pytest.raises(RequestError, match="cannot render these messages"):
        chatml.apply_chat_template([{"role": None, "content": "a"}])
    with pytest.raises(RequestError, match="empty"):
        chatml.apply_chat_template([])
    with pytest.raises(RequestError, match="no chat template"):
        Tokenizer.load(make_directory()).apply_chat_template([{"role": "user", "content": "a"}])
    broken = Tokenizer.load(make_directory(config={"chat_template": "{% for x in %}"}))
    with pytest.raises(CheckpointError, match="malformed in line 1"):
        broken.apply_chat_template([{"role": "user", "content": "a"}])


def test_templates_run_in_a_sandbox(make_directory):
    escape = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    change = "{% set _ = messages.append({}) %}"
    for template in (escape, change):
        tokenizer = Tokenizer.load(make_directory(config={"chat_template": template}))
        with pytest.raises(RequestError, match=r"unsafe|not safely"):
            tokenizer.apply_chat_template([{"role": "user", "content": "a"}])


def test_the_last_message_can_be_gone_on_with(make_directory):
    chatml = Tokenizer.load(make_directory(config={"chat_template": CHATML}))
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "It is"}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    text = chatml.apply_chat_template(said, **options)
    assert text.endswith("It is")
    whole = chatml.apply_chat_template(said, add_generation_prompt=False)
    assert whole.startswith(text) and len(whole) > len(text)
    for messages, more in (
        (said, {"continue_final_message": True}),
        ([{"role": "user", "content": ""}], options),
        ([{"role": "assistant", "content": "x", "tool_calls": []}], options),
    ):
        with pytest.raises(RequestError, match="continue_final_message"):
            chatml.apply_chat_template(messages, **more)
    silent = Tokenizer.load(make_directory(config={"chat_template": "nothing"}))
    with pytest.raises(RequestError, match="does not show"):
        silent.apply_chat_template(said, **options)


def test_a_template_of_the_configuration(tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages[0].content }}!")
    assert read_template(str(file)) == "{{ messages[0].content }}!"
    assert read_template("{{ 1 }}") == "{{ 1 }}"
    file.write_bytes(b"\xff")
    for bad in (str(file), str(tmp_path / "none"), str(tmp_path), "{{", "{% if %}"):
        with pytest.raises(ConfigError, match="chat_template: "):
            read_template(bad)


def test_contents_become_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    assert template_message({"role": "user", "content": parts})["content"] == "a\nb"
    assert template_message({"role": "assistant", "content": None})["content"] == ""
    with pytest.raises(RequestError, match="text only, no image_url"):
        template_message({"role": "user", "content": [{"type": "image_url"}]})


@pytest.mark.parametrize(
    ("arguments", "found"),
    [('{"a": 1}', {"a": 1}), ("[1]", "[1]"), ("nonsense", "nonsense"), ("", "")],
)
def test_arguments_become_objects_where_they_are(arguments: str, found: object) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = template_message({"role": "assistant", "tool_calls": [call]})
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": found}
    assert call["function"]["arguments"] == arguments


@pytest.mark.parametrize("message", ["text", None, {"role": "user", "content": ["text"]}])
def test_messages_of_another_form_are_refused(message: object) -> None:
    with pytest.raises(RequestError, match=r"is an object|text only"):
        template_message(message)


def test_calls_of_another_form_are_left_to_the_template() -> None:
    for calls in ([1], [{"function": 1}], [{"function": {"arguments": {"a": 1}}}], "text"):
        assert template_message({"role": "assistant", "tool_calls": calls})["tool_calls"] == calls
