"""The endpoints of every server, one module for each family."""

from hotshoe_server.endpoints import (
    about,
    admin,
    chat,
    completions,
    embeddings,
    responses,
    tokens,
)

ENDPOINTS = [
    *chat.ENDPOINTS,
    *completions.ENDPOINTS,
    *embeddings.ENDPOINTS,
    *responses.ENDPOINTS,
    *tokens.ENDPOINTS,
    *about.ENDPOINTS,
    *admin.ENDPOINTS,
]
