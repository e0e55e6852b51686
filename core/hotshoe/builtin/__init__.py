"""What core itself plugs in, through the same hooks as everybody else."""
