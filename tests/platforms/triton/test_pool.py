"""Processes of a pool."""

import os
import select
import subprocess
import sys
from pathlib import Path

POOL = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from hotshoe_triton.pool import end_with_parent

if __name__ == "__main__":
    with ProcessPoolExecutor(1, get_context("spawn"), end_with_parent) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        time.sleep(600)
"""


def test_a_process_of_a_pool_ends_with_who_made_it(tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(POOL)
    command = [sys.executable, tmp_path / "pool.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        watcher = os.pidfd_open(int(owner.stdout.readline()))
        owner.kill()
        try:
            assert select.select([watcher], [], [], 60)[0]
        finally:
            os.close(watcher)
