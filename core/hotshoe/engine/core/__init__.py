"""The engine core: a scheduler and a worker, stepped; with adapters, sleep and KV transfers."""
