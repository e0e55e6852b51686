"""Limits that kernels and their callers must agree on.

Read by setup.py, which hands each to the compiler as HOTSHOE_<name>, and by the package, so that
whoever judges a specification refuses exactly what the kernels do. Imports nothing.
"""

#: So many products of int8 values fit a sum of 32 bits, however large they are.
MAX_INT8_K = 131072
#: Processes of one host that a communicator joins.
MAX_RANKS = 16
