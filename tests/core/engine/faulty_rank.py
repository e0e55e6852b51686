"""A rank without a model: counts like the null platform, and fails when the prompt says so.

Run as a rank's process by ranks/test_parallel.py.
"""

import os
import signal
import subprocess
import sys
import threading
import time

from hotshoe.builtin.null import NullWorker
from hotshoe.engine.ranks import rank as product
from hotshoe.engine.ranks.rank import main
from hotshoe.errors import CheckpointError, EngineError, RequestError
from hotshoe.slots import AttentionSpec, Decision, Verdict

DIE, RAISE, REFUSE, STICK, BIG, LOSE, STOP = 1, 2, 3, 4, 5, 6, 7
SPEC = AttentionSpec(4, 2, 8, "float32", "float32", 16, 0.1, window=7)


class Lost:
    """A step that fails when its worker is closed."""

    def __init__(self, closed: threading.Event) -> None:
        self.closed = closed

    def result(self):
        self.closed.wait()
        raise EngineError("the group has been left")


class Worker(NullWorker):
    def __init__(self, join) -> None:
        super().__init__(8)
        self.rank, self.faulty = join.seat.rank, join.config["hf_overrides"].get("faulty", -1)
        if self.faulty == "all":
            self.faulty = self.rank
        self.load_fault = join.config["hf_overrides"].get("load_fault")
        self.closed = threading.Event()
        self.adapters: dict[str, str] = {}
        if "removal_s" in join.config["hf_overrides"]:
            self.remove_late(join.config["hf_overrides"]["removal_s"])

    def remove_late(self, seconds: float) -> None:
        plain = product.shutil.rmtree

        def remove(*args, **options):
            time.sleep(seconds)
            plain(*args, **options)

        product.shutil.rmtree = remove

    def load(self):
        info = super().load()
        object.__setattr__(info, "cache_budget_bytes", (10 - self.rank) << 20)
        if self.rank == self.faulty and self.load_fault == "refuse":
            raise CheckpointError("weights are missing")
        if self.rank == self.faulty and self.load_fault == "die":
            os.kill(os.getpid(), signal.SIGTERM)
        if self.rank == self.faulty and self.load_fault == "stick":
            subprocess.run(["sleep", "1000"], check=True)  # as if it compiled for ever
        decision = Decision(
            "attention", SPEC, "fast", 7, "why not", (("slow", Verdict(None, "no")),)
        )
        object.__setattr__(info, "decisions", (decision,))
        object.__setattr__(info, "report", {"rank": self.rank, "same": "on all"})
        return info

    def execute(self, plan):
        for new in plan.new_rows:
            if self.rank == self.faulty:
                self.fail(new.token_ids[0])
        step = super().execute(plan)
        for new in plan.new_rows:
            if new.token_ids[0] == LOSE:
                return Lost(self.closed)
            if new.token_ids[0] == BIG:
                step.value.failed[new.row] = "x" * (1 << 21)
        return step

    def fail(self, how: int) -> None:
        if how == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == RAISE:
            raise ZeroDivisionError("a bug")
        if how == REFUSE:
            raise RequestError("not this one", "prompt")
        if how == STICK:
            time.sleep(1000)

    def offload(self) -> None:
        if self.rank == self.faulty:
            self.fail(STOP if self.load_fault == "stop" else DIE)

    def restore(self) -> None:
        self.offload()

    def update_weights(self, weights: object, check_only: bool = False) -> None:
        self.offload()

    def load_adapter(self, name: str, path: str, check_only: bool = False) -> None:
        if path == "nowhere" or (path == "here" and self.rank == 1):
            raise CheckpointError(f"{path} is no directory")
        if not check_only:
            self.adapters[name] = path
        if path == "a-directory":
            self.offload()

    def drop_adapter(self, name: str) -> None:
        self.adapters.pop(name, None)

    def start_profile(self, folder: str) -> None:
        self.folder = folder

    def stop_profile(self) -> str:
        if not self.folder:
            raise RequestError("start one first")
        had = "".join(f" {name}={path}" for name, path in self.adapters.items())
        name, self.folder = f"{self.folder}/{self.rank}{had}", ""
        return name

    def close(self) -> None:
        self.closed.set()
        print(f"rank {self.rank} closed", file=sys.stderr)


if __name__ == "__main__":
    main(lambda join: (Worker(join), join.config["enforce_eager"]))
