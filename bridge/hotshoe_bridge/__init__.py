"""A platform's or pack's candidates inside other engines and libraries: one pack, several hosts."""
