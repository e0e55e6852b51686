"""From a configuration to what an engine is made of: models, platform, executor, cache."""
