"""The front, and the image of it."""

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from hotshoe_bench.pareto import HEIGHT, WIDTH, Point, draw, front

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
    assert 'a <b> & "c"' in {text.text for text in image.findall("{*}text")}
