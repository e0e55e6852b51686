"""Admin verbs: what they do, and who may."""

import pytest

from hotshoe_server.admission import AdminDoor

VERBS = {
    "/pause": ("pause", "abort", True),
    "/resume": ("resume",),
    "/sleep": ("sleep", 1, "keep"),
    "/wake_up": ("wake_up", None),
    "/reset_prefix_cache": ("reset_prefix_cache", False),
    "/abort_requests": ("abort_everywhere", None),
}


@pytest.fixture
def admin(http):
    http.app = AdminDoor(http.app)
    return http


@pytest.mark.parametrize("path", VERBS)
def test_verbs_through_the_admin_socket(admin, engine, path: str) -> None:
    assert admin("POST", path).status_code == 200
    assert engine.calls == [VERBS[path]]


def test_verbs_take_arguments(admin, engine) -> None:
    admin.post("/pause", mode="keep", clear_cache=False)
    admin.post("/sleep", level=2, mode="abort")
    assert admin.get("/is_sleeping").json() == {"is_sleeping": True}
    admin.post("/wake_up", tags=["weights", "scheduling"])
    admin.post("/abort_requests", request_ids=["a"])
    assert engine.calls == [
        ("pause", "keep", False),
        ("sleep", 2, "abort"),
        ("wake_up", ["weights", "scheduling"]),
        ("abort_everywhere", ["a"]),
    ]
    assert admin.post("/pause", mode="never").status_code == 400


def test_arguments_may_stand_in_the_url(admin, engine) -> None:
    assert admin("POST", "/pause?mode=keep&clear_cache=false").status_code == 200
    assert admin.get("/is_paused").json() == {"is_paused": True}
    assert admin("POST", "/sleep?level=2", json={"mode": "abort"}).status_code == 200
    for tags in ("tags=weights", "tags=weights&tags=kv_cache"):
        assert admin("POST", f"/wake_up?{tags}").status_code == 200
    assert engine.calls == [
        ("pause", "keep", False),
        ("sleep", 2, "abort"),
        ("wake_up", ["weights"]),
        ("wake_up", ["weights", "kv_cache"]),
    ]


@pytest.mark.parametrize("ids", [["12"], ["12", "a", "true"]])
def test_names_in_a_url_may_look_like_numbers(admin, engine, ids) -> None:
    url = "/abort_requests?" + "&".join(f"request_ids={name}" for name in ids)
    assert admin("POST", url).status_code == 200
    assert engine.calls == [("abort_everywhere", ids)]


@pytest.mark.parametrize(
    ("method", "url", "body", "param"),
    [
        ("POST", "/sleep?level=deep", {}, "level"),
        ("POST", "/sleep?depth=1", {}, "depth"),
        ("POST", "/sleep?level=1", {"level": 1}, "level"),
        ("POST", "/sleep?level=1", [], None),
        ("GET", "/is_sleeping?level=1", None, "level"),
    ],
)
def test_bad_arguments_of_a_url_are_named(admin, engine, method, url, body, param) -> None:
    refused = admin(method, url, json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert engine.calls == []


def test_new_weights_come_from_a_path(admin, engine) -> None:
    url = "/update_weights"
    assert admin("POST", url, json={"path": "/new"}).json() == {"done": True}
    assert engine.calls == [("update_weights", "/new")]
    refused = admin("POST", url, json={"path": "/none"})
    assert refused.status_code == 400 and "/none is missing" in refused.text
    for body in ({}, {"path": ""}, {"path": 3}, {"path": "x" * 5000}, {"weights": "/new"}):
        assert admin("POST", url, json=body).status_code == 400


@pytest.mark.parametrize("path", [*VERBS, "/update_weights"])
def test_nobody_else_may(http, engine, path: str) -> None:
    response = http("POST", path)
    assert (response.status_code, response.json()["error"]["code"]) == (403, "admin_only")
    assert engine.calls == []


def test_an_admin_key_opens_them(open_http, engine, tmp_path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# admins\nadmin-key-1\n")
    http = open_http(admin_key_file=str(keys), api_key=["user-key-1"])
    for key, status in (("user-key-1", 403), ("admin-key-1", 200), ("admin-key-2", 401)):
        response = http("POST", "/resume", headers={"authorization": f"Bearer {key}"})
        assert response.status_code == status
    assert engine.calls == [("resume",)]
