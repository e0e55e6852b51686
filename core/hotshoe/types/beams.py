"""How a request wants a beam search: the likeliest texts, instead of sampled ones."""

from dataclasses import dataclass

from hotshoe.errors import RequestError

MAX_BEAMS = 64
MAX_LENGTH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Parameters of one request that searches.

    Attributes:
        beam_width: Texts that are kept in each step, and returned. The engine must report twice as
            many log probabilities (`max_logprobs`).
        max_tokens: Most tokens to generate; None means up to the model's length.
        ignore_eos: Go on behind tokens that end a text.
        length_penalty: A text's score is the sum of its log probabilities, divided by the number
            of its generated tokens to this power; above 0 favors long texts.
        adapter: As in `SamplingParams`.

    Raises:
        RequestError: A value is of the wrong type or out of range; `field` names it.
    """

    beam_width: int
    max_tokens: int | None = 16
    ignore_eos: bool = False
    length_penalty: float = 1.0
    adapter: str | None = None

    def __post_init__(self) -> None:
        for name, limit in (("beam_width", MAX_BEAMS), ("max_tokens", MAX_LENGTH)):
            count = getattr(self, name)
            if count is None and name == "max_tokens":
                continue
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= limit:
                raise RequestError(f"{name} must be 1 to {limit}, not {count!r}", name)
        penalty = self.length_penalty
        number = isinstance(penalty, (int, float)) and not isinstance(penalty, bool)
        if not number or not abs(penalty) <= 10:  # which NaN is not
            raise RequestError(
                f"length_penalty must be a number from -10 to 10, not {penalty!r}", "length_penalty"
            )
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(
                f"ignore_eos must be true or false, not {self.ignore_eos!r}", "ignore_eos"
            )
        if self.adapter is not None and not isinstance(self.adapter, str):
            raise RequestError(f"adapter must be a name, not {self.adapter!r}", "adapter")
