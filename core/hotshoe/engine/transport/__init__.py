"""Engines in threads and processes: who steps them, who watches them, how front ends reach them."""
