"""OpenAI-compatible HTTP server over `hotshoe.engine.client.EngineClient`; see `create_app`."""
