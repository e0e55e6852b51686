"""The null platform with faults to order, as a plugin that a test installs for other processes.

Options of the platform: `load_s` seconds to load, `load_error` a message to refuse with, `step_s`
seconds a step takes, `fail_step` and `hang_step` the ids of steps that fail or take `hang_s`,
`hurry` a file that lets no step take its time while it is there. With `hold_at`, the name of one
of its methods, weights can be moved and replaced; the first worker that gets there makes the file
`reached`, and stays until there is the file `hurry`.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hotshoe.builtin.null import NullPlatform, NullWorker
from hotshoe.config import EngineConfig
from hotshoe.errors import CheckpointError
from hotshoe.executor import WorkerInfo
from hotshoe.platform import Change
from hotshoe.plugins import hookimpl
from hotshoe.types import FinishedStep, StepPlan

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_platforms() -> Mapping[str, str]:
    return {"faulty": "hotshoe_faulty:FaultyPlatform"}


class FaultyPlatform(NullPlatform):
    name = "faulty"

    def resolve(self, config: EngineConfig) -> Sequence[Change]:
        return ()  # it has options

    def create_worker(self, config: EngineConfig) -> "FaultyWorker":
        kind = FaultyWeightsWorker if "hold_at" in config.platform_options else FaultyWorker
        return kind(config)


class FaultyWorker(NullWorker):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config.max_num_seqs)
        self.options = config.platform_options

    def load(self) -> WorkerInfo:
        time.sleep(self.options.get("load_s", 0))
        if "load_error" in self.options:
            raise CheckpointError(self.options["load_error"])
        return super().load()

    def execute(self, plan: StepPlan) -> FinishedStep:
        self.wait(self.options.get("step_s", 0))
        if plan.step_id == self.options.get("hang_step"):
            self.wait(self.options["hang_s"])
        if plan.step_id == self.options.get("fail_step"):
            raise RuntimeError("the device fell off")
        return super().execute(plan)

    def wait(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0 and not self.hurries():
            time.sleep(min(0.01, left_s))

    def hurries(self) -> bool:
        return "hurry" in self.options and Path(self.options["hurry"]).exists()


class FaultyWeightsWorker(FaultyWorker):
    def offload(self) -> None:
        self.hold("offload")

    def restore(self) -> None:
        self.hold("restore")

    def update_weights(self, weights: object, check_only: bool = False) -> None:
        self.hold("update_weights")

    def hold(self, place: str) -> None:
        reached = Path(self.options["reached"])
        if place == self.options["hold_at"] and not reached.exists():
            reached.touch()
            self.wait(60)
