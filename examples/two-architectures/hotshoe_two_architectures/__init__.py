"""Two architectures that Hotshoe does not describe itself."""
