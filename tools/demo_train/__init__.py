"""Training of the bundled demo model: network, batches, optimizer, loop, evaluation, export.

Consumes the folder that `demo_data.prepare` wrote; `tools/train_demo.py` is the entry.
"""
