"""A process that imports what a child of ours will need, and waits to hear what to be.

`children.started_ahead` starts it, while its owner still gets ready. It ends with its owner.
"""

from __future__ import annotations

import gc
import importlib
import socket
import sys
from contextlib import suppress

from hotshoe.engine.wire.spares import Role, hear
from hotshoe.host import freeze


def main() -> int:
    """Take the channel, the module to become and further imports from the command line."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    module, *others = sys.argv[2:]
    gc.disable()  # looks for garbage would take a sixth of the time, and modules stay
    for name in (module, *others):
        with suppress(Exception):  # who needs it will say so
            importlib.import_module(name)
    freeze(look=False)
    gc.enable()
    words = hear(channel)
    return Role(module, [str(channel.detach()), *words]).run()


if __name__ == "__main__":
    sys.exit(main())
