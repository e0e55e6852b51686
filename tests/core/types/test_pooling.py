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
