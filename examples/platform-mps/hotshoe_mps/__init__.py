"""Apple's GPUs through Metal, and the same platform played by a processor."""
