"""What a template may compute: its loops end, and nothing long is made of something short."""

import time

import pytest

from hotshoe.errors import CheckpointError, RequestError
from hotshoe.text import template_limits
from hotshoe.text.chat_template import render

MESSAGES = [{"role": "user", "content": "ab\n"}] * 3
NEST = "{% for _ in range(99999) %}{% for _ in range(99999) %}{% endfor %}{% endfor %}"
FORKS = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}"
DOUBLED = "{% set x = 'ab' %}" + "{% set x = x OP x %}" * 60
LISTS = "{% set x = [1] %}" + "{% set x = [x, x] %}" * 60
HOSTILE = {
    "loops": NEST,
    "loops that write": NEST.replace("{% endfor %}{% endfor %}", "a{% endfor %}{% endfor %}"),
    "macros": FORKS,
    "call blocks": "{% macro f() %}" + NEST + "{% endmacro %}{% call f() %}{% endcall %}",
    "concatenated": DOUBLED.replace("OP", "~"),
    "added": DOUBLED.replace("OP", "+"),
    "added lists": DOUBLED.replace("'ab'", "[1]").replace("OP", "+"),
    "repeated": "{{ 'a' * 999999999999 }}",
    "repeated from the left": "{{ 999999999999 * [1] }}",
    "power": "{{ 9 ** 999999999 }}",
    "factors": "{% set x = 2 ** 4000 %}" + "{% set x = x * x %}" * 60,
    "shared lists": LISTS + "{{ x }}",
    "shared lists as JSON": LISTS + "{{ x | tojson }}",
    "shared lists as text": LISTS + "{% set y = x | string %}",
    "shared lists concatenated": LISTS + "{% set y = x ~ 'a' %}",
    "shared lists formatted": LISTS + "{% set y = '%s' % x %}",
    "shared lists joined": LISTS + "{% set y = x | join %}",
    "centered": "{{ 'a' | center(99999999999) }}",
    "indented": "{{ '\\n' * 9999999 | indent(999999) }}{{ ('\\n' * 9999999) | indent(999999) }}",
    "justified": "{{ 'a'.ljust(99999999999) }}",
    "bytes": "{{ (1).to_bytes(99999999999, 'big') }}",
    "tabs": "{{ ('\\t' * 9999999).expandtabs(999999) }}",
    "width": "{{ '%0999999999d' % 1 }}",
    "width of a filter": "{{ '%0999999999d' | format(1) }}",
    "width of a method": "{{ '{:>9999999999}'.format(1) }}",
    "nested width": "{{ '{:>{w}}'.format(1, w=9999999999) }}",
    "replaced": "{% set x = 'a' * 9999999 %}{{ x.replace('a', x) }}",
    "replaced by a filter": "{% set x = 'a' * 9999999 %}{{ x | replace('a', x) }}",
    "joined": "{{ ('a' * 9999999).join(['b'] * 9999999) }}",
    "joined by a filter": "{{ range(99999) | join('a' * 9999999) }}",
    "sums": "{% set x = [1] * 9999999 %}{{ [x] * 99999 | sum(start=[]) }}"
    "{% set y = ([x] * 99999) | sum(start=[]) %}",
    "filler": "{{ lipsum(n=999999) }}",
    "indented JSON": "{{ [1] | tojson(indent=9999999999) }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_refused_in_bounded_time(name, monkeypatch):
    monkeypatch.setattr(template_limits, "MAX_TURNS", 100_000)
    start = time.thread_time()
    with pytest.raises(RequestError, match="the chat template cannot render these messages"):
        render(HOSTILE[name], {"messages": MESSAGES})
    assert time.thread_time() - start < 8


def test_time_is_bounded_too(monkeypatch):
    monkeypatch.setattr(template_limits, "MAX_SECONDS", 0.05)
    with pytest.raises(RequestError, match=r"it takes more than 0\.05 seconds"):
        render(NEST, {})


def test_names_of_templates_do_not_reach_the_meter(monkeypatch):
    monkeypatch.setattr(template_limits, "MAX_TURNS", 10_000)
    with pytest.raises(RequestError, match=r"turns"):
        render("{% set meter = 1 %}{% set the_meter = 1 %}" + NEST, {"meter": 3, "tick": 4})


@pytest.mark.parametrize(
    "source",
    ["{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% if 1 %}" * 5000, "{{ " + "9" * 9999],
)
def test_templates_that_cannot_be_compiled_are_named(source):
    with pytest.raises(CheckpointError, match="chat template"):
        render(source, {})


ORDINARY = {
    "{% for m in messages %}{{ loop.index }}{{ loop.last }} {% endfor %}": "1False 2False 3True ",
    "{% for a in [1, 2, 3] if a != 2 %}{{ a }}{% else %}none{% endfor %}": "13",
    "{% for a in [] %}{{ a }}{% else %}none{% endfor %}": "none",
    "{% for a in [1, [2]] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}": "12",
    "{% macro f(a) %}{{ a }}{{ caller() }}{% endmacro %}{% call f(1) %}x{% endcall %}": "1x",
    "{{ 'a' ~ 1 ~ [2] }}{{ 'b' + 'c' }}{{ [1] + [2] }}{{ 'd' * 3 }}": "a1[2]bc[1, 2]ddd",
    "{{ 2 ** 10 }}{{ 1.5 * 2 }}{{ '%s-%05d' % ('a', 7) }}{{ 5 % 3 }}": "10243.0a-000072",
    "{{ '{:>4}|{}'.format(1, 10 ** 12) }}": "   1|1000000000000",
    "{{ [1, 2] | join(', ') }}{{ 'a\nb' | indent(2) }}{{ 'x' | center(3) }}": "1, 2a\n  b x ",
    "{{ [1, 2] | map('string') | join('-') }}{{ [1, 2] | sum }}": "1-23",
    "{{ messages | map(attribute='role') | unique | join }}": "user",
    "{{ 'aXbX'.replace('X', 'yy') }}{{ '-'.join(['a', 'b']) }}": "ayybyya-b",
    "{{ {'a': [1, none]} | tojson }}{{ none }}{{ undefined_name }}": '{"a": [1, null]}None',
}


@pytest.mark.parametrize(("source", "expected"), ORDINARY.items())
def test_ordinary_templates_write_what_jinja_writes(source, expected):
    assert render(source, {"messages": MESSAGES}) == expected


def test_long_conversations_are_rendered():
    messages = [{"role": "user", "content": "x" * 500}] * 20_000
    source = "{% for m in messages %}{{ m.role ~ ': ' + m.content | trim }}\n{% endfor %}"
    assert len(render(source, {"messages": messages})) == 20_000 * 507
