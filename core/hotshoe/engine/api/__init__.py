"""Where prompts come in and text goes out: `LLM`, `AsyncEngine`, checks of prompts, beam search."""
