"""`hotshoe bench`: latency, throughput and start-up, on random tokens, medians over iterations."""
