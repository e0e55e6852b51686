"""The plugin: the executor that this distribution offers. Imports nothing of it."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_executors() -> Mapping[str, str]:
    """Name the executor as `distributed_executor_backend` spells it."""
    return {"ray": "hotshoe_ray.executor:create"}
