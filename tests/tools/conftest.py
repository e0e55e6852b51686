"""Makes the folders of `tools/` importable, as the scripts there do for themselves."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
