"""Plain-PyTorch implementations of every slot: the oracle, and the day-one path of a new platform."""
