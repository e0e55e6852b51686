"""The one model runner: persistent request rows, step inputs, forward pass, sampling."""
