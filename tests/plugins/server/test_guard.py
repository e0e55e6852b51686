"""Who may come in."""

import hmac

import pytest

from hotshoe.errors import ConfigError
from hotshoe_server.endpoints import ENDPOINTS
from hotshoe_server.errors import ApiError
from hotshoe_server.extensions import Endpoint, Parts, PublicFile
from hotshoe_server.guard import Keyring, read_keys

KEY = "a-good-key"
PATHS = sorted({(e.method, e.path) for e in ENDPOINTS} | {("GET", "/openapi.json")})
STRANGE = ["/", "/nothing", "//live", "/live/", "/live/../v1/models", "/%6cive/x", "/LIVE"]


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_every_route_is_denied_without_a_key(open_http, engine, method: str, path: str) -> None:
    http = open_http(api_key=[KEY])
    path = path.replace("{model:path}", "demo").replace("{response_id}", "x")
    response = http(method, path)
    if path in ("/live", "/ready"):
        assert response.status_code == 200
    else:
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    assert engine.requests == [] and engine.calls == []


@pytest.mark.parametrize("path", STRANGE)
def test_what_no_route_knows_is_denied_too(open_http, path: str) -> None:
    assert open_http(api_key=[KEY]).get(path).status_code == 401


def test_public_files_are_bytes_and_nothing_more(open_http) -> None:
    file = PublicFile("/", b"<p>hello", {"content-type": "text/html"})
    http = open_http([Parts(files=[file])], api_key=[KEY])
    answer = http.get("/")
    assert (answer.status_code, answer.content) == (200, file.body)
    assert answer.headers["content-type"] == "text/html"
    assert http.get("/?path=/etc/passwd").content == file.body
    assert http("POST", "/").status_code == 405
    for path in ("/index.html", "/./v1/models", "/ui", "/%2e"):
        assert http.get(path).status_code == 401
    assert http("GET", "/", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (f"Bearer {KEY}", 200),
        (f"bearer   {KEY}", 200),
        (f"Basic {KEY}", 401),
        (KEY, 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        (f"Bearer {KEY}x", 401),
        (f"Bearer {KEY[:-1]}", 401),
    ],
)
def test_keys(open_http, value: str, status: int) -> None:
    http = open_http(api_key=["another-key", KEY])
    assert http("GET", "/v1/models", headers={"authorization": value}).status_code == status


def test_of_two_keys_none_counts(open_http) -> None:
    http = open_http(api_key=[KEY])
    given = (b"authorization", f"Bearer {KEY}".encode())
    other = (b"authorization", b"Bearer another-key")
    host = (b"host", b"localhost")
    assert http.app._identify({"headers": [host, given]})
    for pair in ([given, other], [other, given], [given, given]):
        assert http.app._identify({"headers": [host, *pair]}) is None


def test_each_key_has_its_own_prefix_cache(open_http, engine) -> None:
    http = open_http(api_key=["first-key", "second-key"])
    for key in ("first-key", "second-key", "first-key"):
        headers = {"authorization": f"Bearer {key}"}
        http("POST", "/v1/completions", json={"prompt": "x"}, headers=headers)
    first, second, third = (request.tenant for request in engine.requests)
    assert first == third != second
    assert "key" not in first


def test_without_keys_there_is_one_prefix_cache(http, engine) -> None:
    http.post("/v1/completions", prompt="x")
    assert engine.requests[0].tenant is None


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8000", 200),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
def test_hosts_on_loopback(open_http, host: str, status: int) -> None:
    assert open_http(headers={"host": host}).get("/live").status_code == status


def test_of_two_hosts_none_counts(open_http) -> None:
    http = open_http()
    scope = {"headers": [(b"host", b"evil.example"), (b"host", b"localhost")]}
    with pytest.raises(ApiError, match="Host header"):
        http.app._identify(scope)


def test_no_web_page_leads_to_a_unix_socket(open_http) -> None:
    anywhere = {"headers": {"host": "model.example"}, "uds": "/x"}
    assert open_http(**anywhere).get("/live").status_code == 200
    assert open_http(**anywhere, allowed_hosts=["other.example"]).get("/live").status_code == 403


def test_hosts_elsewhere(open_http) -> None:
    anywhere = {"headers": {"host": "model.example"}, "host": "0.0.0.0"}
    assert open_http(**anywhere).get("/live").status_code == 200
    assert open_http(**anywhere, allowed_hosts=["model.example"]).get("/live").status_code == 200
    assert open_http(**anywhere, allowed_hosts=["other.example"]).get("/live").status_code == 403


def test_cors_is_off_unless_asked_for(open_http) -> None:
    headers = {"origin": "https://page.example", "access-control-request-method": "POST"}
    closed = open_http()("OPTIONS", "/v1/completions", headers=headers)
    assert closed.status_code == 405
    assert "access-control-allow-origin" not in closed.headers
    http = open_http(allowed_origins=["https://page.example"], api_key=[KEY])
    opened = http("OPTIONS", "/v1/completions", headers=headers)
    assert opened.headers["access-control-allow-origin"] == "https://page.example"
    asked = {"access-control-request-headers": "authorization, x-stainless-lang"}
    official = http("OPTIONS", "/v1/completions", headers=headers | asked)
    assert official.status_code == 200
    assert "x-stainless-lang" in official.headers["access-control-allow-headers"]
    foreign = http("OPTIONS", "/v1/completions", headers={**headers, "origin": "https://evil"})
    assert "access-control-allow-origin" not in foreign.headers


def test_a_ring_finds_its_keys_alone() -> None:
    ring = Keyring(["one-of-many", "two-of-many"])
    assert ring and not Keyring([])
    assert ring.find(b"one-of-many") != ring.find(b"two-of-many")
    assert ring.find(b"") is ring.find(b"one") is None


@pytest.mark.parametrize("key", ["first-key", "last-key!", "first-ke", "none-such", "", "x" * 9999])
def test_every_key_costs_the_same_comparisons(monkeypatch, key: str) -> None:
    """Time itself is too noisy to test; these are all the steps that see a key."""
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    known = ["first-key", "second-key", "last-key!"]
    ring = Keyring(known)
    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert (ring.find(key.encode()) is not None) == (key in known)
    assert compared == [(32, 32)] * len(known)


def test_files_of_keys(tmp_path, open_http) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# people\n\n  {KEY}  \nother-key-2\n")
    assert read_keys(path) == [KEY, "other-key-2"]
    http = open_http(api_key_file=str(path))
    headers = {"authorization": f"Bearer {KEY}"}
    assert http("GET", "/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("text", ["", "# nothing\n", "short", "has a space", "schlüssel-lang"])
def test_files_without_good_keys(tmp_path, open_http, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError, match="key"):
        open_http(api_key_file=str(path))


def test_a_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_keys(tmp_path / "none")


def test_keys_from_the_environment(monkeypatch, open_http) -> None:
    monkeypatch.setenv("KEYS", f"{KEY}\nother-key-2")
    http = open_http(api_key_env="KEYS")
    for key in (KEY, "other-key-2"):
        headers = {"authorization": f"Bearer {key}"}
        assert http("GET", "/v1/models", headers=headers).status_code == 200
    assert http.get("/v1/models").status_code == 401
    monkeypatch.setenv("KEYS", " ")
    for name in ("KEYS", "NO_SUCH_KEYS"):
        with pytest.raises(ConfigError, match=f"variable {name} .* holds no key"):
            open_http(api_key_env=name)


def test_admins_have_keys_of_their_own(tmp_path, open_http) -> None:
    path = tmp_path / "keys"
    path.write_text(KEY)
    with pytest.raises(ConfigError, match="is a user's key, too"):
        open_http(api_key=[KEY], admin_key_file=str(path))


def test_probes_can_be_left_open(open_http) -> None:
    metrics = Parts(files=[], endpoints=[Endpoint("GET", "/metrics", numbers, "Numbers")])
    for opened, status in ((False, 401), (True, 200)):
        http = open_http([metrics], api_key=[KEY], unauthenticated_probes=opened)
        for path in ("/health", "/ping", "/metrics"):
            assert http.get(path).status_code == status, path
        assert http.get("/load").status_code == 401
        assert http.get("/v1/models").status_code == 401


async def numbers(call) -> dict[str, int]:
    return {"n": 1}


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/models//", "/version/"])
def test_slashes_at_the_end_of_a_path(open_http, path: str) -> None:
    http = open_http(api_key=[KEY])
    assert http.get(path).status_code == 401
    key = {"authorization": f"Bearer {KEY}"}
    assert (
        http("GET", path, headers=key).json() == http("GET", path.rstrip("/"), headers=key).json()
    )
    answer = http("POST", "/v1/completions/", headers=key, json={"prompt": "x"})
    assert answer.json()["choices"][0]["text"] == "Hello there"
