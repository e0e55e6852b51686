"""A simulated accelerator: its own device type, its own memory, and work that runs later."""
