"""The endpoints of every server, one module for each family."""

from hotshoe_server.endpoints import (
    about,
    admin,
    chat,
    completions,
    conversations,
    embeddings,
    invocations,
    messages,
    response_input,
    responses,
    tokens,
)

ENDPOINTS = [
    *chat.ENDPOINTS,
    *completions.ENDPOINTS,
    *invocations.ENDPOINTS,
    *embeddings.ENDPOINTS,
    *responses.ENDPOINTS,
    *response_input.ENDPOINTS,
    *conversations.ENDPOINTS,
    *messages.ENDPOINTS,
    *tokens.ENDPOINTS,
    *about.ENDPOINTS,
    *admin.ENDPOINTS,
]
