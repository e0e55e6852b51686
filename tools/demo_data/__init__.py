"""Data preparation for the bundled demo model.

Documentation text out of Debian packages, a byte-level BPE tokenizer, and a generator of small
synthetic conversations.  Everything here runs on a CPU and is a function of fixed seeds;
`tools/train_demo.py` drives it, `tools/demo_train` consumes it.
"""
