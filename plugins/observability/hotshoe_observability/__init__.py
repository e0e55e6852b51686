"""What `hotshoe serve` tells of itself: metrics, traces, structured logs, profiles."""
