"""Models in GGUF files: header, tensors, configuration and tokenizer, for the same architectures.

Source of the format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""
