"""Core's own plugin: the null platform and the commands. Registered like any other."""

from collections.abc import Mapping

from hotshoe.cli.command import CommandEntry
from hotshoe.plugins.hookspecs import hookimpl

HOTSHOE_HOOK_API = 2

_COMMANDS = {
    "bench latency": ("bench.latency:Latency", "measure one batch: first token, time per token"),
    "bench startup": ("bench.startup:Startup", "measure process start to first token"),
    "bench throughput": ("bench.throughput:Throughput", "measure tokens per second, many prompts"),
    "chat": ("chat:Chat", "talk with a model"),
    "doctor": ("doctor:Doctor", "look at this machine: versions, limits, what is broken"),
    "explain": ("explain:Explain", "say what would serve a model here, without loading it"),
    "generate": ("generate:Generate", "continue prompts"),
    "join": ("join:Join", "have ranks of an engine here that another host starts"),
    "platforms": ("platforms:Platforms", "list platforms and what they found"),
    "plugins": ("plugins:Plugins", "list plugins and what they offer"),
    "preload": ("preload:Preload", "keep a model's files in memory for engines that start"),
}


@hookimpl
def hotshoe_platforms() -> Mapping[str, str]:
    return {"null": "hotshoe.builtin.null:NullPlatform"}


@hookimpl
def hotshoe_commands() -> Mapping[str, CommandEntry]:
    return {
        name: CommandEntry(f"hotshoe.cli.{target}", text)
        for name, (target, text) in _COMMANDS.items()
    }
