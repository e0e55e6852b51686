"""The server's configuration: one frozen record, flags and YAML names as for `EngineConfig`.

What concerns the engine (its queue, its process, its restarts) is `EngineConfig`'s; what an
extension needs is declared by the extension. Standard library only.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hotshoe.config import check_options, option
from hotshoe.errors import ConfigError

#: Group title -> first field of the group, as `hotshoe.cli.options` wants it.
SERVER_GROUPS = {
    "server": "host",
    "access": "api_key",
    "parsing": "tool_call_parser",
    "several models": "models",
    "adapters by name": "lora_dir",
    "request limits": "max_body_bytes",
}
MIB = 2**20
_LABELED = re.compile(r"[A-Za-z0-9_.-]+=")
#: An address without a name, a password or a fragment.
_ADDRESS = re.compile(r"https?://([^\s/@#?]+)(/[^\s@#]*)?")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything that defines a server beside its engine. Never edited in place.

    Raises:
        ConfigError: A value has the wrong type or lies outside its bounds.
    """

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on; 0 takes a free one", low=0, high=65535)
    uds: str | None = option(None, "unix socket to listen on in place of --host and --port")
    served_model_name: list[str] = option([], "name that requests use for the model")
    admin_socket: str | None = option(None, "unix socket for admin verbs, readable by its owner")
    engine_process: bool = option(True, "run the engine in a process of its own")
    api_processes: int = option(1, "processes that answer HTTP", low=1, high=64)
    shutdown_timeout_s: float = option(
        30.0, "seconds that running requests get to end after SIGTERM", low=0, high=86400
    )
    ssl_certfile: str | None = option(None, "certificate chain, to speak TLS")
    ssl_keyfile: str | None = option(None, "private key of the certificate")
    access_log: bool = option(False, "print a line for each request")
    ollama: bool = option(False, "answer in Ollama's form, too: /api/chat and others")
    enable_tokenizer_info_endpoint: bool = option(False, "tell of the tokenizer: /tokenizer_info")
    middleware: list[str] = option([], "MODULE:NAME of ASGI middleware, code that this server runs")
    log_format: str = option(
        "text",
        "form of log lines on stderr; hotshoe-observability adds one for each request to json",
        choices=("text", "json"),
    )

    api_key: list[str] = option([], "key that requests must bear; prefer --api-key-file")
    api_key_file: str | None = option(None, "file of such keys, one a line")
    api_key_env: str | None = option(None, "name of an environment variable with such keys")
    admin_key_file: str | None = option(None, "file of keys that allow admin verbs over HTTP")
    unauthenticated_probes: bool = option(
        False, "let everybody read /health, /ping and /metrics without a key"
    )
    allowed_hosts: list[str] = option(
        [], "value of the Host header to accept; on loopback its own names always are"
    )
    allowed_origins: list[str] = option([], "origin of web pages that may send requests (CORS)")

    tool_call_parser: str = option("auto", "format of tool calls; auto reads the chat template")
    reasoning_parser: str = option("auto", "format of reasoning sections, likewise")
    trust_request_chat_template: bool = option(
        False, "let requests bring a chat template of their own; it runs in a sandbox, bounded"
    )
    default_chat_template_kwargs: dict[str, Any] = option(
        {}, "variables of the chat template for what requests leave open"
    )
    reasoning_field: str = option(
        "both",
        "name of reasoning in chat answers",
        choices=("both", "reasoning", "reasoning_content"),
    )
    enable_auto_tool_choice: bool = option(True, "let the model call tools of its own accord")
    enable_force_include_usage: bool = option(
        False, "end every stream with a count of tokens, asked for or not"
    )
    return_tokens_as_token_ids: bool = option(
        False, "name tokens of log probabilities token_id:5, asked for or not"
    )
    tool_server: list[str] = option(
        [], "MCP server whose tools responses may use, as HOST:PORT, URL or LABEL=URL; no other is"
    )
    tool_timeout_s: float = option(
        30.0, "seconds that a tool server may take for an answer", low=0.01, high=3600
    )
    tool_answer_bytes: int = option(2**20, "longest answer of a tool server", low=1024, high=2**30)
    max_tool_calls: int = option(
        16, "most calls of tools of servers for one response", low=1, high=1024
    )
    response_store_bytes: int = option(
        64 * MIB, "memory for stored responses; 0 stores none", low=0, high=2**40
    )

    models: dict[str, Any] = option(
        {}, "further model by name, as NAME=MODEL, or NAME.OPTION=VALUE for an option of its own"
    )
    max_resident_models: int | None = option(
        None,
        "most models that are awake at once: the one idle longest is put to sleep where another is "
        "asked for; default: all",
        low=1,
        high=1024,
    )
    model_wait_timeout_s: float = option(
        60.0,
        "seconds that a request for a sleeping one of several models waits for its wake",
        low=0.01,
        high=86400,
    )

    lora_dir: str | None = option(
        None, "directory of adapters: requests may name each by the name of its folder there"
    )
    lora_resolver: list[str] = option(
        [], "plugin that finds adapters by name: hub fetches those that requests name OWNER/REPO"
    )
    max_resolved_loras: int = option(
        256,
        "most adapters that are loaded because requests named them; the one unused longest goes",
        low=1,
        high=4096,
    )
    lora_wait_timeout_s: float = option(
        60.0,
        "seconds that a request waits until its adapter is found and loaded",
        low=0.01,
        high=86400,
    )

    max_body_bytes: int | None = option(
        None,
        "longest request body; default: 4 MiB and 64 bytes for each token of max_model_len",
        low=1024,
        high=2**32,
    )
    max_header_bytes: int = option(64 * 1024, "longest request head", low=1024, high=2**24)
    read_timeout_s: float = option(
        60.0, "seconds that a client may take to send a request", low=0.1, high=86400
    )
    write_timeout_s: float = option(
        60.0, "seconds that a client may leave an answer unread", low=0.1, high=86400
    )
    request_timeout_s: float | None = option(
        21600.0,
        "seconds after which a request ends, finished or not; null: never",
        low=0.001,
        high=86400,
    )
    ignore_unknown_fields: bool = option(
        False, "leave out fields of requests that nobody knows, instead of refusing the request"
    )
    clip_max_tokens: bool = option(
        False, "give fewer tokens than max_tokens asks for where the context has no room"
    )
    max_sequences: int = option(
        128, "most sequences of one HTTP request: prompts times n", low=1, high=65536
    )
    max_schema_bytes: int = option(
        2**20, "longest JSON schema, regular expression or grammar", low=64, high=2**20
    )
    max_tools: int = option(128, "most tools of one request", low=0, high=4096)

    def __post_init__(self) -> None:
        check_options(self)
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ConfigError(
                "TLS needs both ssl_certfile and ssl_keyfile; give the other one, too"
            )
        self._check_tool_servers()
        if self.uds is not None and self.ssl_certfile is not None:
            raise ConfigError("a unix socket (uds) speaks no TLS; leave ssl_certfile out")
        if self.uds is not None and self.uds == self.admin_socket:
            raise ConfigError("uds and admin_socket need paths of their own")
        if self.api_processes > 1 and not self.engine_process:
            raise ConfigError("several API processes need the engine in a process of its own")
        if self.finds_adapters and self.api_processes > 1:
            raise ConfigError(
                "lora_dir and lora_resolver need one API process, which knows what is loaded; "
                "leave api_processes out"
            )
        if self.has_models and self.api_processes > 1:
            message = "several models are served by one API process; leave api_processes out"
            raise ConfigError(message)
        if self.has_models and not self.engine_process:
            raise ConfigError("several models need their engines in processes of their own")

    def _check_tool_servers(self) -> None:
        try:
            servers = self.tool_servers
        except ValueError as error:
            raise ConfigError(f"tool_server: {error}") from None
        if servers and importlib.util.find_spec("mcp") is None:
            raise ConfigError("tool_server needs the library mcp: install hotshoe-server[mcp]")

    @property
    def tool_servers(self) -> dict[str, str]:
        """Addresses of tool servers by label."""
        return _by_label(self.tool_server)

    @property
    def has_models(self) -> bool:
        """True when several models are asked for, now or later."""
        return bool(self.models) or self.max_resident_models is not None

    @property
    def finds_adapters(self) -> bool:
        """True when requests may name adapters that nobody has loaded."""
        return self.lora_dir is not None or bool(self.lora_resolver)

    @property
    def has_keys(self) -> bool:
        """True when requests must bear a key."""
        return bool(self.api_key) or self.api_key_file is not None or self.api_key_env is not None

    @property
    def reasoning_names(self) -> tuple[str, ...]:
        """Fields of a chat answer that hold its reasoning."""
        named = self.reasoning_field
        return ("reasoning_content", "reasoning") if named == "both" else (named,)

    @property
    def loopback(self) -> bool:
        """True when only this machine can connect."""
        if self.uds is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def _by_label(servers: Sequence[str]) -> dict[str, str]:
    """Return addresses by label, of tool servers as HOST:PORT, URL or LABEL=URL.

    Raises:
        ValueError: One is malformed, or two have the same label.
    """
    found: dict[str, str] = {}
    for text in (part.strip() for given in servers for part in given.split(",")):
        label, url = text.split("=", 1) if _LABELED.match(text) else ("", text)
        if "://" not in url and ":" in url.partition("/")[0]:
            url = f"http://{url}" if "/" in url else f"http://{url}/mcp"
        address = _ADDRESS.fullmatch(url)
        if address is None:
            raise ValueError(f"{text!r} is no HOST:PORT, URL or LABEL=URL")
        label = label or address[1]
        if label in found:
            raise ValueError(f"two servers are called {label!r}")
        found[label] = url
    return found
