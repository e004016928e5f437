"""Stages of a run: their time, the digest of what each one reads, and where finished ones are kept."""

from aggservice.campaign.stages.watch import Progress, Stopwatch, no_progress

__all__ = ["Progress", "Stopwatch", "no_progress"]
