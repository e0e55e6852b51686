"""Plain tables."""

from hotshoe.cli.table import table


def test_numbers_stand_to_the_right() -> None:
    text = table(("name", "n", "x"), [("a", 1, 0.5), ("long name", 23456, 1234.56)])
    assert text.splitlines() == [
        "name           n        x",
        "---------  -----  -------",
        "a              1    0.500",
        "long name  23456  1,234.6",
    ]


def test_no_rows_no_table() -> None:
    assert table(("a",), []) == ""
