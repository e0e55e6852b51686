"""Decides which tokens of which requests each step computes, and keeps the books of requests.

Knows no device, no model and no text: it hands a StepPlan out and takes a StepResult in. Called
by the engine core. Standard library only.
"""

from hotshoe.scheduler.config import SchedulerConfig
from hotshoe.scheduler.drafts import DraftCounts
from hotshoe.scheduler.request import Request
from hotshoe.scheduler.scheduler import Scheduler
from hotshoe.scheduler.stats import SchedulerStats

__all__ = ["DraftCounts", "Request", "Scheduler", "SchedulerConfig", "SchedulerStats"]
