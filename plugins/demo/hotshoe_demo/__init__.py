"""The bundled demo model: a checkpoint of 18 million parameters and the cases that measure it.

`MODEL` is an ordinary Hugging Face checkpoint folder; `hotshoe_demo.plugin` names it `demo`.
How it was made: docs/reference/demo-model.md.
"""

from pathlib import Path

MODEL = Path(__file__).parent / "model"
HELD_OUT = Path(__file__).parent / "heldout"
