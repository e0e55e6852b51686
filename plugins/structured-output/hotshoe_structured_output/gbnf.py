r"""Translates grammars as llama.cpp writes them (GBNF) into llguidance's Lark dialect.

llguidance brings a parser for them, which is used; but it would lose the zeros of `\u0041`, write
`("a"*)*` without its parentheses, and take two rules for one where their names differ by case or
dashes. So escapes are written as characters before, and rules are named and written here.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from hotshoe.errors import RequestError
from hotshoe_structured_output.schema import refusal

if TYPE_CHECKING:
    from llguidance.gbnf_to_lark import ASTNode, RuleNode

_LARK = re.compile(r"(?m)^\s*(%llguidance\b|start\s*:(?!:=))")
_TOKEN = re.compile(
    r'(?P<literal>"(?:\\.|[^"\\])*")|(?P<cls>\[(?:\\.|[^\]\\])*\])|#[^\r\n]*', re.DOTALL
)
_CODE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)|(?:&&|~~|--)", re.DOTALL
)
_SHORT = {"n": "\n", "r": "\r", "t": "\t"}
_MARKS = {(0, None): "*", (1, None): "+", (0, 1): "?"}
_SPECIAL_IN_CLASS = frozenset("\\[]^-&~/")


def is_lark(text: str) -> bool:
    """Tell whether a grammar is written in Lark already."""
    return _LARK.search(text) is not None


def to_lark(text: str) -> str:
    """Return a grammar in Lark, without a header.

    Raises:
        RequestError: It is malformed.
    """
    from llguidance.gbnf_to_lark import GbnfToLarkError, GrammarParser

    try:
        rules = GrammarParser().parse(_TOKEN.sub(_decoded, text))
        if "root" not in rules:
            raise refusal("the grammar is malformed: it has no rule 'root'")
        return _written(rules)
    except RequestError:
        raise
    except IndexError as error:  # the package looks past the end of the text
        raise refusal("the grammar is malformed: it ends within an escape") from error
    except (GbnfToLarkError, ValueError, RecursionError) as error:
        message = " ".join(str(error).split())
        raise refusal(f"the grammar is malformed: {message}") from error


def _decoded(token: re.Match[str]) -> str:
    """Write the escapes of a literal or class as the characters that they stand for."""
    in_class = token["cls"] is not None
    if not in_class and token["literal"] is None:
        return token[0]

    def one(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        if code is None:
            if match[0][0] == "\\" or not in_class:
                return match[0]
            return "".join(rf"\x{ord(char):02x}" for char in match[0])
        number = int(code, 16)
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise refusal(f"the grammar is malformed: there is no character {match[0]}")
        char = chr(number)
        if in_class:
            plain = number >= 0x20 and char not in _SPECIAL_IN_CLASS
            return char if plain else rf"\x{number:02x}"
        return "\\" + char if char in '"\\' else char

    return _CODE.sub(one, token[0])


def _written(rules: dict[str, RuleNode]) -> str:
    terminal = _terminals(rules)
    names = {
        name: "start" if name == "root" else f"T{i}" if name in terminal else f"r{i}"
        for i, name in enumerate(rules)
    }
    return "".join(
        f"{names[name]}: {_text(rule.alternatives, names)}\n" for name, rule in rules.items()
    )


def _terminals(rules: dict[str, RuleNode]) -> set[str]:
    """Return the rules that refer to terminals only, so that the lexer can serve them."""
    from llguidance.gbnf_to_lark import RuleRefNode

    needs: dict[str, set[str]] = {}
    for name, rule in rules.items():
        needs[name], stack = set(), [rule.alternatives]
        while stack:
            node = stack.pop()
            if isinstance(node, RuleRefNode):
                if node.name not in rules:
                    raise refusal(f"the grammar is malformed: rule {node.name!r} is not there")
                needs[name].add(node.name)
            stack += node.children()
    found: set[str] = set()
    while True:
        more = {n for n, needed in needs.items() if n != "root" and needed <= found} - found
        if not more:
            return found
        found |= more


def _text(node: ASTNode, names: dict[str, str]) -> str:
    from llguidance import gbnf_to_lark as tree

    match node:
        case tree.LiteralNode():
            return json.dumps(_plain(node.value), ensure_ascii=False)
        case tree.RegexNode():
            return f"/{node.rx}/"
        case tree.RuleRefNode():
            return names[node.name]
        case tree.RepetitionNode():
            least, most = node.min_times, node.max_times
            counts = f"{{{least},{'' if most is None else most}}}"
            return f"({_text(node.node, names)}){_MARKS.get((least, most), counts)}"
        case tree.SequenceNode():
            return " ".join(_text(one, names) for one in node.nodes) or '""'
        case tree.AlternativeNode():
            return f"({' | '.join(_text(one, names) for one in node.alternatives)})"
    raise refusal(f"the grammar is malformed: {node!r}")


def _plain(value: str) -> str:
    """Read what is left of a literal's escapes."""
    return re.sub(r"\\(.)", lambda m: _SHORT.get(m[1], m[1]), value, flags=re.DOTALL)
