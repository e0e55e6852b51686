"""The engine: where configuration, platform and model meet, and steps are driven."""
