"""The page on a real server: the bundled model answers, gauges move, decisions are shown."""

import urllib.error

import pytest
from tests.plugins.served import serve


def ask(page, text: str) -> str:
    """Say something and return the answer."""
    page.run("document.getElementById('prompt').focus()")
    page.type(text)
    page.press("Enter")
    page.wait("!document.getElementById('send').hidden")
    return page.run("[...document.querySelectorAll('.message.assistant')].at(-1).innerText")


def test_the_demo_model(page) -> None:
    with serve("demo", "--platform", "cpu", "--served-model-name", "little") as served:
        page.open(served.url)
        page.wait("document.getElementById('health').textContent == 'ready'")
        page.run("document.getElementById('temperature').value = 0")
        assert "12 + 30 = 42" in ask(page, "What is 12 plus 30?")
        page.run("document.getElementById('use-tools').click()")
        assert "calls get_weather" in ask(page, "What is the weather in Rome?")
        page.run("document.getElementById('use-tools').click()")
        page.wait("document.querySelector('.gauge svg [class=bar]')")
        page.wait("parseInt(document.querySelectorAll('.gauge .value')[4].innerText) > 0")
        page.run("document.getElementById('tab-platform').click()")
        page.wait("document.querySelectorAll('#platform .card').length >= 5")
        shown = page.run("document.getElementById('platform').innerText")
        for part in ("little", "attention", "load weights", "block_size"):
            assert part in shown
        page.open("about:blank")


def test_a_server_that_wants_a_key(page, tmp_path) -> None:
    key = tmp_path / "keys"
    key.write_text("sesame-424242\n")
    with serve("demo", "--platform", "null", "--api-key-file", str(key)) as served:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            served.get("/metrics")
        page.open(served.url)
        page.wait("document.getElementById('key-dialog').open")
        page.run("document.getElementById('key').focus()")
        page.type("sesame-424242")
        page.press("Enter")
        page.wait("document.getElementById('health').textContent == 'ready'")
        page.open("about:blank")
        assert all("401" in complaint for complaint in page.complaints)
        page.complaints.clear()
