"""Tells a load balancer how busy the engine is, in a header of an answer that it asks for.

Source: Open Request Cost Aggregation (ORCA), https://github.com/envoyproxy/envoy/issues/6614. The
names of the numbers are vLLM's.
"""

from __future__ import annotations

import json

from starlette.responses import Response

from hotshoe.errors import EngineDeadError
from hotshoe_server.call import Call

WANTED, GIVEN = "endpoint-load-metrics-format", "endpoint-load-metrics"


async def add_load(call: Call, response: Response) -> None:
    """Add the numbers of the engine that answers; a format that nobody knows gets none."""
    form = call.headers[WANTED].strip().upper()
    try:
        stats = await call.served.client.stats()
    except EngineDeadError:  # which another answer reports
        return
    named = {
        "kv_cache_usage_perc": round(stats.kv_cache_usage, 4),
        "num_requests_running": stats.num_running,
        "num_requests_waiting": stats.num_waiting,
    }
    if form == "JSON":
        response.headers[GIVEN] = f"JSON {json.dumps({'named_metrics': named})}"
    elif form == "TEXT":
        pairs = (f"named_metrics.{name}={value}" for name, value in named.items())
        response.headers[GIVEN] = f"TEXT {', '.join(pairs)}"
