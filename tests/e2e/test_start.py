"""What a start does not do before the first token: import what it does not need, look for garbage
again and again, and leave tensors to such a look."""

import json
import subprocess
import sys

CODE = """
import gc, json, sys
import torch  # which imports some of the packages itself
of_torch, looks, collect = set(sys.modules), [], gc.collect
gc.collect = lambda *words: looks.append(sys._getframe(1).f_code.co_name) or collect(*words)
gc.callbacks.append(lambda phase, info: phase == "start" and info["generation"] == 2
                    and looks.append("a full look"))
from hotshoe.cli import options, session
from hotshoe.cli.parser import Parser
parser = Parser("hotshoe generate", "")
options.add_engine_flags(parser)
args = parser.parse(["demo", "--platform", "cpu", "--kv-cache-memory-bytes", "16777216"])
import hotshoe.cli.generate, hotshoe.cli.main
with session.open_llm(args, quiet=True) as llm:
    seen = list(looks)
    gc.set_debug(gc.DEBUG_SAVEALL)
    collect()
    gc.set_debug(0)
    left = sum(isinstance(one, torch.Tensor) for one in gc.garbage)
    held = sum(isinstance(one, torch.Tensor) for one in gc.get_objects())
    gc.garbage.clear()
    llm.generate("Hello")
print(json.dumps([sorted({n.partition(".")[0] for n in set(sys.modules) - of_torch} -
                         sys.stdlib_module_names), seen, left, held]))
"""
#: All that a start on a CPU imports beside torch, the standard library and Hotshoe itself.
NEEDED = {"msgspec", "numpy", "pluggy", "tokenizers"}


def test_a_start_imports_no_more_than_it_needs() -> None:
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    imported, looks, left, held = json.loads(done.stdout)
    others = {name for name in imported if not name.startswith(("hotshoe", "_"))}
    assert others <= NEEDED
    begun = looks[looks.index("uncollected") :]
    assert begun == ["uncollected", "a full look"], "one look, before anything is built"
    assert left == 0 < held
