"""The front, and the image of it."""

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from hotshoe_bench.pareto import HEIGHT, TICKS, WIDTH, Point, draw, front, ticks

SPEEDS = st.integers(0, 5).map(float)
POINTS = st.lists(st.builds(Point, st.integers(1, 64), SPEEDS, SPEEDS), max_size=8)


def test_a_front() -> None:
    slow, fast, beaten = Point(16, 10.0, 160.0), Point(1, 30.0, 30.0), Point(32, 9.0, 150.0)
    assert front([fast, beaten, slow]) == [slow, fast]


@given(POINTS)
def test_nothing_on_the_front_is_beaten(points: list[Point]) -> None:
    best = front(points)
    assert bool(best) == bool(points)
    for point in points:
        beaten = any(
            other.user >= point.user
            and other.total >= point.total
            and (other.user > point.user or other.total > point.total)
            for other in points
        )
        assert beaten != (point in best)


@given(POINTS)
def test_the_image_shows_every_point(points: list[Point]) -> None:
    image = ET.fromstring(draw(points, 'a <b> & "c"'))
    circles = image.findall("{*}circle")
    assert len(circles) == len(points)
    for circle in circles:
        assert 0 <= float(circle.get("cx")) <= WIDTH
        assert 0 <= float(circle.get("cy")) <= HEIGHT
    words = [text.text for text in image.findall("{*}text")]
    assert any(text.startswith('a <b> & "c" (') for text in words)


@given(st.floats(1e-6, 1e9))
def test_ticks_are_few_even_and_round(highest: float) -> None:
    found = ticks(highest)
    assert found[0] == 0 and found[-2] < highest <= found[-1]
    assert len(found) <= TICKS + 1
    assert f"{found[1]:.3e}"[:5] in ("1.000", "2.000", "5.000")


def test_ticks_of_nothing() -> None:
    assert ticks(0.0) == [0.0, 1.0]
    assert ticks(1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
