"""What an engine would be made of, without a weight: `hotshoe explain`."""
