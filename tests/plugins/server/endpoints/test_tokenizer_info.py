"""`/tokenizer_info`: only where the operator has it told."""


def test_it_is_told_when_asked_for(open_http, tokenizer) -> None:
    assert open_http().get("/tokenizer_info").status_code == 404
    told = open_http(enable_tokenizer_info_endpoint=True).get("/tokenizer_info").json()
    assert told["chat_template"] == tokenizer.chat_templates["default"]
    assert told["vocab_size"] == tokenizer.vocab_size
    assert told["eos_token"] == tokenizer.special_tokens["eos_token"]
    special = {int(i): entry["content"] for i, entry in told["added_tokens_decoder"].items()}
    assert special == tokenizer.special_token_texts


def test_it_needs_a_key_like_all(open_http) -> None:
    http = open_http(enable_tokenizer_info_endpoint=True, api_key=["a-key-for-tests"])
    assert http.get("/tokenizer_info").status_code == 401
