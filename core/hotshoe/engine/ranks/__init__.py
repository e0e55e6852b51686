"""Several processes, on one host or on several, that are one worker."""
