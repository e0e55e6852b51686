"""What a request for a vector may ask for."""

import pytest

from hotshoe.errors import RequestError
from hotshoe.types import Pooling, PoolingParams


def test_a_request_leaves_the_rest_to_the_model() -> None:
    model = Pooling("mean", normalize=False)
    assert PoolingParams().over(model, 8) == model
    assert PoolingParams(8, True).over(model, 8) == Pooling("mean", True, 8)


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "3"])
def test_dimensions_are_a_positive_integer(value) -> None:
    with pytest.raises(RequestError, match="dimensions must be an integer") as found:
        PoolingParams(dimensions=value)
    assert found.value.field == "dimensions"


def test_more_dimensions_than_there_are_name_both() -> None:
    with pytest.raises(RequestError, match=r"dimensions is 9, but .* have 8"):
        PoolingParams(dimensions=9).over(Pooling("last"), 8)


def test_normalize_is_a_truth_value() -> None:
    with pytest.raises(RequestError, match="normalize must be true or false"):
        PoolingParams(normalize=1)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"task": "tokens"}, "task"),
        ({"task": "token_embed", "use_activation": True}, "use_activation"),
        ({"task": "token_classify", "dimensions": 3}, "dimensions"),
        ({"task": ["embed"]}, "task"),
        ({"use_activation": True}, "use_activation"),
        ({"task": "classify", "use_activation": 1}, "use_activation"),
        ({"task": "classify", "dimensions": 3}, "dimensions"),
        ({"task": "classify", "normalize": False}, "normalize"),
    ],
)
def test_what_means_nothing_to_a_task_is_refused(values, field) -> None:
    with pytest.raises(RequestError) as found:
        PoolingParams(**values)
    assert found.value.field == field


def test_a_request_may_want_logits() -> None:
    model = Pooling("last", False, task="classify", activation="softmax")
    assert PoolingParams(task="classify").over(model, 8) == model
    raw = PoolingParams(task="classify", use_activation=False).over(model, 8)
    assert raw == Pooling("last", False, task="classify")
