"""`hotshoe serve`: flags, the order of start-up, and what is said about it."""

from __future__ import annotations

import logging
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from hotshoe.cli.options import (
    add_engine_flags,
    add_option_flags,
    given_options,
    read_configs,
    read_yaml,
)
from hotshoe.cli.parser import Parser
from hotshoe.cli.session import phases
from hotshoe.config import EngineConfig
from hotshoe.engine.start.ahead import engine_ahead
from hotshoe.errors import ConfigError
from hotshoe.host import allow_open_files
from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager
from hotshoe_server.config import SERVER_GROUPS, ServerConfig
from hotshoe_server.extensions import ServerExtension, blamed
from hotshoe_server.logs import start_logs
from hotshoe_server.plans import Plan, make_plans, one_of, rewrite_models
from hotshoe_server.signals import end_at_sigterm, ignore_signals
from hotshoe_server.vllm_file import own_options
from hotshoe_server.vllm_flags import rewrite

if TYPE_CHECKING:
    from hotshoe.engine.client import EngineClient, EngineStatus
    from hotshoe_server.fleet import Fleet

_log = logging.getLogger(__name__)
HOOK = "hotshoe_server_extensions"


class Serve:
    """See `hotshoe.cli.command.Command`."""

    def __init__(self) -> None:
        self._parser: Parser | None = None
        self._plugins = PluginManager()
        end_at_sigterm()

    def add_arguments(self, parser: ArgumentParser) -> None:
        if isinstance(parser, Parser):
            self._parser = parser
            parser.rewrite = lambda words: rewrite(rewrite_models(words), _log.warning)
        add_engine_flags(parser)
        add_option_flags(parser, ServerConfig, SERVER_GROUPS)
        for name, extension in find_extensions(self._plugins).items():
            if extension.options is not None:
                first = fields(extension.options)[0].name
                add_option_flags(parser, extension.options, {name: first})

    def run(self, args: Namespace) -> int:
        try:
            return self._serve(args)
        finally:
            ignore_signals()

    def _serve(self, args: Namespace) -> int:
        if args.config is not None and self._parser is not None:
            args.config = own_options(read_yaml(args.config), self._parser)
        found = find_extensions(self._plugins)
        optional = [extension.options for extension in found.values() if extension.options]
        classes = (EngineConfig, ServerConfig, *optional)
        given = given_options(args, classes)
        check_named(given)
        engine, config, *options = read_configs(args, classes)
        with engine_ahead(engine) if config.engine_process else nullcontext():
            return self._run(engine, config, options, "model" in given)

    def _run(
        self, engine: EngineConfig, config: ServerConfig, options: list[Any], named: bool
    ) -> int:
        say = start_logs(config)
        allow_open_files()  # each connection holds one
        plugins = self._plugins
        if engine.disable_plugins:
            plugins = PluginManager(disabled=engine.disable_plugins)
        extensions = with_options(find_extensions(plugins), options)
        warn(config)
        for record in plugins.records:
            if record.warning:
                _log.warning("%s", record.warning)
        engine = with_turns(engine, config)
        plans = make_plans(engine, config, named)
        for plan in plans:
            with one_of(plans, plan):
                check_early(plan.config, plugins)
                check_adapters(plan.engine)
        from hotshoe.engine.start.draft import check_speculation
        from hotshoe.engine.start.places import check_model
        from hotshoe_server.socket_file import Listening, unix_socket
        from hotshoe_server.sockets import open_port

        with (
            unix_socket("--uds", config.uds, private=False) as local,
            unix_socket("--admin-socket", config.admin_socket) as admin,
        ):
            front = local or Listening(open_port(config.host, config.port))
            for plan in plans:
                with one_of(plans, plan):
                    check_model(plan.engine, plugins)
                    check_speculation(plan.engine, plugins)
            say(f"listening on {address(config, front.listener.getsockname())}")
            if config.api_processes > 1:
                from hotshoe_server.supervisor import Supervisor

                named = {name: own for name, (_, own) in extensions.items() if own is not None}
                return Supervisor(engine, config, named).run(front, admin)
            from hotshoe_server.serving import Server, Start

            first, fleet = plans[0], None
            build = partial(load, first.engine, "thread", say)
            if config.engine_process:
                fleet = make_fleet(plans, engine, plugins, say)
                build = partial(fleet.build, first)
            start = Start(fleet=fleet)
            server = Server(first.config, plugins, extensions, build, say, start=start)
            return server.run(front.listener, admin.listener if admin else None)


def with_turns(engine: EngineConfig, config: ServerConfig) -> EngineConfig:
    """Serve tenants in turns where there are several, unless a policy was asked for.

    Raises:
        ConfigError: Keys cannot be used.
    """
    from hotshoe_server.guard import keyrings

    several = len(keyrings(config)[0]) > 1
    fair = several and engine.scheduling_policy == "auto"
    return replace(engine, scheduling_policy="fair") if fair else engine


def make_fleet(
    plans: Sequence[Plan],
    engine: EngineConfig,
    plugins: PluginManager,
    say: Callable[[str], None],
) -> Fleet:
    """Return what loads the models of a server, each into a process of its own."""
    from hotshoe_server.fleet import Fleet, make_served

    def build(plan: Plan) -> EngineClient:
        check_early(plan.config, plugins)  # one that is loaded later was not seen at the start
        return load(plan.engine, "process", say)

    return Fleet(
        plans,
        engine,
        build,
        lambda config, client: make_served(config, client, plugins),
        say,
    )


def address(config: ServerConfig, name: Any) -> str:
    """Return where a server listens, as people write it, from its socket's name."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    host, port = name[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if config.ssl_certfile else 'http'}://{shown}:{port}"


def check_named(given: Mapping[str, Any]) -> None:
    """Refuse to serve the demo model under another's name, which is a forgotten MODEL.

    Raises:
        ConfigError: A name is given, and no model.
    """
    if given.get("served_model_name") and "model" not in given:
        raise ConfigError(
            "--served-model-name needs MODEL; name the model that is served under it, "
            "as in `hotshoe serve demo --served-model-name NAME`"
        )


def check_early(config: ServerConfig, plugins: PluginManager) -> None:
    """Find what would be found only when the model has been loaded, or by every API process.

    Raises:
        UserError: Keys or a certificate cannot be used, a parser's or a resolver's name is unknown,
            or a directory is none.
    """
    from hotshoe.text.response import choose_format
    from hotshoe_server.guard import keyrings
    from hotshoe_server.schemas.chat import RESERVED_VARIABLES
    from hotshoe_server.sockets import check_certificate

    keyrings(config)
    taken = RESERVED_VARIABLES.intersection(config.default_chat_template_kwargs)
    if taken:
        raise ConfigError(f"default_chat_template_kwargs may not set {min(taken)}")
    if config.ssl_certfile and config.ssl_keyfile:
        check_certificate(config.ssl_certfile, config.ssl_keyfile)
    for role, name in (("tool", config.tool_call_parser), ("reasoning", config.reasoning_parser)):
        if name != "auto":
            choose_format(plugins, role, name, {})
    if config.finds_adapters:  # a supervisor needs none of what this imports
        from hotshoe_server.named_adapters import find_resolvers

        find_resolvers(config, plugins)


def check_adapters(engine: EngineConfig) -> None:
    """Refuse adapters of an engine that takes none.

    Raises:
        ConfigError: There are such.
    """
    if engine.lora_modules and not engine.enable_lora:
        raise ConfigError("lora_modules needs an engine that takes adapters: enable_lora")


def find_extensions(plugins: PluginManager) -> dict[str, ServerExtension]:
    """Return what plugins add to the server, by name.

    Raises:
        PluginError: One cannot be imported.
    """
    found = {}
    for name, target in sorted(plugins.mapping(HOOK).items()):
        with blamed(name):
            found[name] = resolve_lazy(target)
    return found


def with_options(
    extensions: Mapping[str, ServerExtension], options: list[Any]
) -> dict[str, tuple[ServerExtension, Any]]:
    """Give every extension its options."""
    by_type = {type(found): found for found in options}
    return {
        name: (extension, by_type.get(extension.options) if extension.options else None)
        for name, extension in extensions.items()
    }


def load(
    config: EngineConfig, transport: Literal["thread", "process"], say: Callable[[str], None]
) -> EngineClient:
    """Build the engine and say what it is."""
    from hotshoe.engine.api.async_engine import AsyncEngine

    client = AsyncEngine(config, transport=transport)
    for line in describe(client):
        say(line)
    return client


def describe(client: EngineStatus) -> list[str]:
    """Return what start-up took, and what could not be served natively."""
    info = client.info
    lines = [
        f"{info.model} on {info.config.platform} ({info.config.dtype}): "
        f"{info.facts.name}, {info.num_blocks} blocks of {info.block_size} tokens",
        f"loaded in {sum(info.startup.values()):.2f} s: {phases(info.startup)}",
    ]
    lines += [f"plugin {name} is broken: {cause}" for name, cause in info.broken_plugins.items()]
    lines += [
        f"slot {found.slot} runs on its plain reference for {found.spec}"
        for found in info.decisions
        if not found.native
    ]
    return lines


def warn(config: ServerConfig) -> None:
    """Say loudly what is dangerous."""
    if not config.loopback and not config.has_keys:
        _log.warning(
            "WARNING: --host %s lets every machine that reaches this one use the "
            "model, without a key; give --api-key-file, or listen on 127.0.0.1",
            config.host,
        )
    if "VLLM_API_KEY" in os.environ and not config.has_keys:  # noqa: TID251
        _log.warning(
            "WARNING: VLLM_API_KEY is not read, so the server has no key; "
            "give --api-key-env VLLM_API_KEY"
        )
    if config.unauthenticated_probes and config.has_keys:
        _log.warning(
            "WARNING: --unauthenticated-probes shows /metrics, /health and /ping to everybody who "
            "reaches %s, key or not",
            config.uds or config.host,
        )
