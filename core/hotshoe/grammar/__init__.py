"""Grammars: what a backend is, which one serves a request, compiling off the step path, and the
masks that keep running requests within their grammars.

Backends come from plugins through hook `hotshoe_grammars`; none lives here. Used by the engine.
"""

from hotshoe.grammar.backend import (
    CompiledGrammar,
    GrammarBackend,
    GrammarCompiler,
    Matcher,
    Vocabulary,
)

__all__ = ["CompiledGrammar", "GrammarBackend", "GrammarCompiler", "Matcher", "Vocabulary"]
