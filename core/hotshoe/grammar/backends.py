"""Chooses the backend that serves a grammar: the first that is installed and does not refuse.

Asked by the engine core for every constrained request, before it is queued.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hotshoe.errors import ConfigError, RequestError
from hotshoe.foreign import ForeignError, foreign
from hotshoe.grammar.backend import GrammarBackend
from hotshoe.lazy import resolve_lazy
from hotshoe.suggest import did_you_mean
from hotshoe.types import GrammarSpec

AUTO = "auto"
#: Grammars whose backend is remembered, as clients send the same ones again and again.
MAX_REMEMBERED = 64
INSTALL = "; install hotshoe-structured-output, which has the usual ones"


class GrammarBackends:
    """The backends that plugins offer; a backend is imported when it is first asked.

    Args:
        offered: Lazy references to backend classes by name, best first.
        preferred: A name, or "auto" to take the first that does not refuse.
        max_blanks: For specifications that do not say.
        judged: JSON Schemas whose `oneOf` is undecided are served, and their texts judged.

    Raises:
        ConfigError: There is no backend of the preferred name, or its library is missing.
    """

    def __init__(
        self,
        offered: Mapping[str, str],
        preferred: str = AUTO,
        max_blanks: int = 1,
        judged: bool = False,
    ) -> None:
        self._max_blanks = max_blanks
        self._judged = judged
        self._offered = dict(offered)
        self._made: dict[str, GrammarBackend] = {}
        self._preferred = preferred
        self._chosen: dict[GrammarSpec, GrammarSpec] = {}
        if preferred != AUTO:
            if preferred not in self._offered:
                choices = ", ".join((AUTO, *self._offered))
                raise ConfigError(
                    f"structured_output_backend {preferred!r} is unknown"
                    f"{did_you_mean(preferred, self._offered)} (choices: {choices})"
                    + ("" if self._offered else INSTALL)
                )
            missing = self.objection(preferred)
            if missing is not None:
                raise ConfigError(f"structured_output_backend {preferred}: {missing}")

    def __getitem__(self, name: str) -> GrammarBackend:
        if name not in self._made:
            self._made[name] = resolve_lazy(self._offered[name])()
        return self._made[name]

    def choose(self, spec: GrammarSpec) -> GrammarSpec:
        """Return the specification with its backend named and nothing else left to the engine.

        Raises:
            RequestError: It is malformed, or no backend can serve it; the message says why of each.
        """
        if spec.kind == "text":
            return spec  # nothing to compile
        if not self._offered:
            raise _refusal(f"this engine has no backend for structured output{INSTALL}")
        if spec.max_blanks is None:
            spec = replace(spec, max_blanks=self._max_blanks)
        if self._judged != spec.judged:
            spec = replace(spec, judged=self._judged)
        names = list(self._offered)
        key = spec.bare
        if key in self._chosen:
            chosen = self._chosen[key]
            return replace(spec, backend=chosen.backend, fallbacks=chosen.fallbacks)
        wanted = spec.backend or self._preferred
        if wanted != AUTO:
            if wanted not in self._offered:
                raise _refusal(f"backend {wanted!r} is unknown (choices: {', '.join(names)})")
            names = [wanted]
        reasons = []
        for name in names:
            reason = self.objection(name, spec)
            if reason is None:
                if len(self._chosen) >= MAX_REMEMBERED:
                    self._chosen.clear()
                fallbacks = tuple(names[names.index(name) + 1 :])
                chosen = replace(spec, backend=name, fallbacks=fallbacks)
                self._chosen[key] = chosen.bare
                return chosen
            reasons.append(f"{name}: {reason}")
        if spec.kind == "json_schema" and not spec.strict:
            return self.choose(replace(spec, kind="json_object", value=""))
        raise _refusal("; ".join(reasons))

    def objection(self, name: str, spec: GrammarSpec | None = None) -> str | None:
        """Return why a backend cannot work here, or cannot serve a specification."""
        try:
            with foreign(passing=(RequestError,)):  # which is the client's, whoever serves it
                backend = self[name]
                missing = backend.missing()
                return missing if missing is not None or spec is None else backend.refusal(spec)
        except ForeignError as failed:  # it costs one request
            return f"it is defective: {failed}"


def _refusal(message: str) -> RequestError:
    return RequestError(f"grammar: {message}", "grammar")
