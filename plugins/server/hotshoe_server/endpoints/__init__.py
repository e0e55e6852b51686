"""The endpoints of every server, one module for each family."""

from hotshoe_server.endpoints import (
    about,
    admin,
    chat,
    classes,
    completions,
    conversations,
    embeddings,
    invocations,
    messages,
    ollama,
    ranking,
    render,
    response_input,
    responses,
    tokenizer_info,
    tokens,
)

ENDPOINTS = [
    *chat.ENDPOINTS,
    *completions.ENDPOINTS,
    *invocations.ENDPOINTS,
    *embeddings.ENDPOINTS,
    *classes.ENDPOINTS,
    *ranking.ENDPOINTS,
    *responses.ENDPOINTS,
    *response_input.ENDPOINTS,
    *conversations.ENDPOINTS,
    *messages.ENDPOINTS,
    *tokens.ENDPOINTS,
    *render.ENDPOINTS,
    *about.ENDPOINTS,
    *admin.ENDPOINTS,
]

#: Option of the server -> the endpoints that it adds.
OPTIONAL = {
    "enable_tokenizer_info_endpoint": tokenizer_info.ENDPOINTS,
    "ollama": ollama.ENDPOINTS,
}
