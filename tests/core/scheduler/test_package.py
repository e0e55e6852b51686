"""What importing the scheduler costs."""

import subprocess
import sys

# Packages' own __init__ files only name what their modules hold, so they count as lines, not as
# modules.
REPORT = """
import sys
before = set(sys.modules)
import hotshoe.scheduler
new = {name: sys.modules[name] for name in set(sys.modules) - before}
ours = {name: module.__file__ for name, module in new.items() if name.split(".")[0] == "hotshoe"}
others = {name.split(".")[0] for name in new} - sys.stdlib_module_names - {"hotshoe"}
print(sorted(others))
print(sum(not path.endswith("__init__.py") for path in ours.values()))
print(sum(len(open(path).readlines()) for path in ours.values()))
print(sorted({".".join(name.split(".")[:2]) for name in ours}))
"""


def test_the_scheduler_stands_on_few_modules_and_the_standard_library() -> None:
    report = subprocess.run(
        [sys.executable, "-c", REPORT], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    third_party, num_modules, num_lines, rooms = report
    assert third_party == "[]"
    assert int(num_modules) <= 12
    assert int(num_lines) <= 1500
    assert rooms == str(
        ["hotshoe", "hotshoe.errors", "hotshoe.kv", "hotshoe.scheduler", "hotshoe.types"]
    )
