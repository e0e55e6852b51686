"""The verbs of `LLM` beside generation: vectors of prompts, their classes, how well pairs match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from hotshoe.engine.api.engine import Engine
from hotshoe.errors import EngineError, RequestError
from hotshoe.text.pairs import pair_text
from hotshoe.types import (
    EmbedsPrompt,
    PoolingParams,
    Prompt,
    RequestOutput,
    TextPrompt,
    TokensPrompt,
)
from hotshoe.types.classes import ClassOutput, TokenVectors
from hotshoe.types.late import LateInteraction


class PoolingVerbs:
    """What an `LLM` does with models that make vectors.

    Attributes:
        engine: That runs them.
    """

    engine: Engine

    def _pool(
        self, prompts: Prompt | Sequence[Prompt], params: PoolingParams
    ) -> list[RequestOutput]:
        """Run prompts to their ends; if one is bad, none is run."""
        raise NotImplementedError

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: PoolingParams | None = None,
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> list[RequestOutput]:
        """Make one vector of each prompt, `output.embedding`. The order is that of the prompts.

        Args:
            prompts: One or several, each of up to `max_model_len` tokens.
            params: For all of them; default: what the model's authors chose.
            prompt: What stands in front of each text.
            prompt_name: The name of that in the model's files; default: their default, if any.

        Raises:
            RequestError: A prompt or parameter is bad, or the model makes no vectors; then none of
                the prompts is run.
        """
        lead = self.engine.info.instructions.chosen(prompt, prompt_name)
        led = _led(prompts, lead) if lead else prompts
        return self._made(led, params or PoolingParams(), "embed")

    def classify(
        self, prompts: Prompt | Sequence[Prompt], params: PoolingParams | None = None
    ) -> list[ClassOutput]:
        """Say of what class each prompt is. The order is that of the prompts.

        Args:
            prompts: As for `embed`.
            params: For all of them, of task "classify"; default: probabilities.

        Raises:
            RequestError: A prompt or parameter is bad, or the model has no head for classes; then
                none of the prompts is run.
        """
        outputs = self._made(prompts, params or PoolingParams(task="classify"), "classify")
        classifier, found = self.engine.info.classifier, []
        assert classifier is not None, "requests for classes are refused without"
        for output in outputs:
            probs = output.embedding or []
            label = classifier.labels[probs.index(max(probs))]
            ids = output.prompt_token_ids
            found.append(ClassOutput(output.request_id, output.prompt, ids, label, probs))
        return found

    def token_embed(
        self, prompts: Prompt | Sequence[Prompt], params: PoolingParams | None = None
    ) -> list[TokenVectors]:
        """Make a vector of each token of each prompt. The order is that of the prompts.

        Args:
            prompts: As for `embed`.
            params: For all of them, of task "token_embed"; default: vectors of length 1.

        Raises:
            RequestError: A prompt or parameter is bad, or the model makes no such vectors; then
                none of the prompts is run.
        """
        params = params or PoolingParams(task="token_embed")
        found = self._made(prompts, params, "token_embed")
        return [_by_token(output, len(output.prompt_token_ids)) for output in found]

    def token_classify(
        self, prompts: Prompt | Sequence[Prompt], params: PoolingParams | None = None
    ) -> list[TokenVectors]:
        """Say of what class each token of each prompt is; a process reward model says that of each
        token that ends a step. The order is that of the prompts.

        Args:
            prompts: As for `embed`.
            params: For all of them, of task "token_classify"; default: probabilities.

        Raises:
            RequestError: As above.
        """
        params = params or PoolingParams(task="token_classify")
        made = self._made(prompts, params, "token_classify")
        classifier = self.engine.info.classifier
        assert classifier is not None, "requests for classes are refused without"
        found = [_by_token(o, classifier.count_classified(o.prompt_token_ids)) for o in made]
        for one in found:
            one.labels = [classifier.labels[row.index(max(row))] for row in one.vectors]
        return found

    def score(self, queries: str | Sequence[str], documents: str | Sequence[str]) -> list[float]:
        """Say how well texts match, one query with each document or each with its own.

        A model with a head of one class reads both texts of a pair at once. One of late interaction
        compares the vectors of their tokens: the score is the sum, over those of the query, of the
        largest product with one of the document. Of any other that makes vectors, the score is the
        cosine of the angle between both, from -1 to 1, or what the model's files name instead: the
        product, or a distance, which is below 0.

        Raises:
            RequestError: The numbers of texts do not fit, a text is bad, or the model does neither.
        """
        left, right = _listed(queries), _listed(documents)
        if not right or len(left) not in (1, len(right)):
            raise RequestError(
                f"{len(left)} queries and {len(right)} documents; give one query, or as many",
                "queries",
            )
        classifier = self.engine.info.classifier
        if classifier is not None and classifier.scores_pairs:
            pairs = zip(left * (len(right) // len(left)), right, strict=True)
            prompts = [self._render_pair(pair, classifier.separated) for pair in pairs]
            return [output.probs[0] for output in self.classify(prompts)]
        if self.engine.info.late is not None:
            return self._compare_tokens(self.engine.info.late, left, right)
        from hotshoe.models.similarity import similarity  # numpy, for those who need it

        vectors = [o.embedding or [] for o in self.embed([*left, *right], PoolingParams())]
        name = self.engine.info.instructions.similarity
        ones = vectors[: len(left)] * (len(right) // len(left))
        return [similarity(name, *pair) for pair in zip(ones, vectors[len(left) :], strict=True)]

    def _compare_tokens(
        self, late: LateInteraction, left: list[str], right: list[str]
    ) -> list[float]:
        """Score pairs of a query, or the only one, and a document by the vectors of tokens."""
        from hotshoe.models.late import max_sim  # numpy, for those who need it

        inputs = self.engine.inputs
        marked = not self.engine.info.config.allow_special_tokens_in_text

        def encoded(text: str) -> list[int]:
            tokenizer = inputs.require_tokenizer()
            return inputs.encode(tokenizer.mark(text) if marked else text, True, marked)

        prompts = [TokensPrompt(late.of_query(encoded(text))) for text in left]
        prompts += [TokensPrompt(late.of_document(encoded(text))) for text in right]
        found = self.token_embed(prompts)
        queries = found[: len(left)] * (len(right) // len(left))
        pairs = zip(queries, found[len(left) :], strict=True)
        return [max_sim(a.vectors, b.vectors, b.prompt_token_ids, late) for a, b in pairs]

    def _render_pair(self, pair: tuple[str, str], separated: bool) -> TokensPrompt:
        """Turn two texts into the prompt of a model that reads both at once."""
        inputs, config = self.engine.inputs, self.engine.info.config
        marked = not config.allow_special_tokens_in_text
        ways = separated, config.chat_template is not None, marked
        text, adds = pair_text(inputs.require_tokenizer(), pair, *ways)
        return TokensPrompt(inputs.encode(text, adds, marked))

    def _made(
        self, prompts: Prompt | Sequence[Prompt], params: PoolingParams, task: str
    ) -> list[RequestOutput]:
        """Return a vector for each prompt, or raise what went wrong with one."""
        if not isinstance(params, PoolingParams) or params.task != task:
            raise RequestError(
                f"params must be PoolingParams of task {task!r}, not {params!r}", "params"
            )
        outputs = self._pool(prompts, params)
        failed = [s.error for o in outputs if o.embedding is None for s in o.outputs]
        if failed:
            raise EngineError(f"a vector could not be made: {failed[0]}")
        return outputs


def _by_token(output: RequestOutput, count: int) -> TokenVectors:
    """Divide the numbers of a prompt among so many of its tokens."""
    numbers, ids = output.embedding or [], output.prompt_token_ids
    size = len(numbers) // count
    rows = [numbers[at : at + size] for at in range(0, len(numbers), size)]
    return TokenVectors(output.request_id, output.prompt, ids, rows)


def _led(prompts: Prompt | Sequence[Prompt], lead: str) -> Prompt | Sequence[Prompt]:
    """Return prompts with something in front of each text; token ids stay as they are."""
    if isinstance(prompts, str):
        return lead + prompts
    if isinstance(prompts, TextPrompt):
        return replace(prompts, text=lead + prompts.text)
    if isinstance(prompts, (TokensPrompt, EmbedsPrompt, Mapping)):
        return prompts
    return [cast(Prompt, _led(one, lead)) for one in prompts]


def _listed(texts: str | Sequence[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)
