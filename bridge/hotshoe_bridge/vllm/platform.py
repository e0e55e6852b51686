"""The platform class of vLLM: that engine's own for this hardware, with attention of candidates.

A class of its own from the ground up would need that engine's worker for a device that it does not
know, and candidates are operations, not workers.
"""

from __future__ import annotations

from typing import Any

from vllm.platforms import builtin_platform_plugins
from vllm.utils.import_utils import resolve_obj_by_qualname

from hotshoe_bridge.vllm import VARIABLE, named

BACKEND = "hotshoe_bridge.vllm.attention.Backend"


def base() -> Any:
    """Return that engine's own class for this hardware.

    Raises:
        RuntimeError: It has none, or several.
    """
    found = [name for detect in builtin_platform_plugins.values() if (name := detect())]
    if len(found) != 1:
        have = ", ".join(found) or "none"
        raise RuntimeError(
            f"{VARIABLE}={named()}: vLLM must know this hardware as exactly one of its platforms, "
            f"and it finds {have}; candidates are operations, and its worker is needed beside them"
        )
    return resolve_obj_by_qualname(found[0])


class HotshoePlatform(base()):  # type: ignore[misc]
    """Serves attention by candidates where no other backend is asked for."""

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Name the backend; that engine's own where ours serves no such layer, which it logs.

        Raises:
            ValueError: Ours is asked for by name and does not serve the layer.
        """
        from vllm.logger import init_logger

        from hotshoe_bridge.vllm.attention import Backend

        asked = getattr(selected_backend, "name", None)
        if asked in (None, "CUSTOM"):
            reasons = Backend.validate_configuration(
                device_capability=None, **attn_selector_config._asdict()
            )
            if not reasons:
                return BACKEND
            why = f"hotshoe-bridge serves no such attention: {', '.join(reasons)}"
            if asked:
                raise ValueError(f"attention_backend {asked}: {why}; choose another")
            init_logger("hotshoe_bridge").warning("%s; vLLM's own does", why)
        own: str = super().get_attn_backend_cls(selected_backend, attn_selector_config, num_heads)
        return own
