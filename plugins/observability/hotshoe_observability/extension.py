"""What hook `hotshoe_server_extensions` names. Imports nothing heavy: every `--help` reads it."""

from hotshoe_observability.options import ObservabilityOptions
from hotshoe_server.extensions import ServerExtension

EXTENSION = ServerExtension(build="hotshoe_observability.build:build", options=ObservabilityOptions)
