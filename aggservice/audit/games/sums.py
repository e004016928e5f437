"""Games against one release: declared keys, discovery, the others total, Gaussian noise, repeated and late reports.

One job tries many units: only unit i contributes to key 2i, and each key has independent noise, so that every key is a
trial. Keys of the second world are those without any contribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.audit.bounds import Samples, gaussian_epsilon
from aggservice.audit.games.game import Game, Played
from aggservice.audit.target import L1, Attacked, Target
from aggservice.mechanisms import Bits, DiscreteLaplace, SeededBits
from aggservice.wire import AggregatableReport, Contribution
from budget import EpsilonDeltaFilter, ZcdpFilter

Metrics = NDArray[np.int64]
_DISCOVERY = EpsilonDeltaFilter.parse(delta="0.5")
_LIFT = 4
"""Reports of other units on each discovered key, which lift it above 2τ."""


def worlds(features: dict[str, Metrics], units: int) -> tuple[Samples, Samples]:
    """Split columns over keys 0, 2, 4, …: the first ``units`` keys had a unit each (first world), the others none."""
    one, other = (
        {name: column[part] for name, column in features.items()} for part in (slice(units), slice(units, None))
    )
    return one, other


def compared(features: dict[str, Metrics], units: int, epsilon: float, **more: Any) -> Played:
    """Return the game between the ``worlds`` of these columns."""
    first, second = worlds(features, units)
    return Played(first=first, second=second, epsilon=epsilon, **more)


def pairs(metrics: Metrics, **more: Metrics) -> dict[str, Metrics]:
    """Return the metric of each even key, and its difference from the next odd key, which has no contribution.

    Two keys that share their noise show the true sum in that difference.
    """
    return {"metric": metrics[::2], "difference of two keys": metrics[::2] - metrics[1::2], **more}


def together(answers: Sequence[Metrics], moved: Sequence[int] | None = None) -> dict[str, Metrics]:
    """Return features of several answers about the same keys; a unit adds ``moved[i]`` (default: Λ₁) to answer i.

    The logarithm of the likelihood ratio of Laplace noise is a metric cut to [0, Λ₁], up to a factor and a constant.
    """
    moves = moved or [L1] * len(answers)
    clipped = [np.clip(one, 0, most)[::2] for one, most in zip(answers, moves, strict=True)]
    return pairs(sum(answers[1:], answers[0]), **{"likelihood ratio": sum(clipped[1:], clipped[0])})


def guesses(job: str, metrics: Metrics, epsilon_micro: int) -> dict[str, Metrics]:
    """Return the metrics less noise that anyone could compute from the job id, if the service drew it from there."""
    law = DiscreteLaplace(epsilon_micro=epsilon_micro, sensitivity=L1)
    sources: dict[str, Bits] = {"job id": SeededBits(job), "job id and label": SeededBits(job).child("noise")}
    return {
        f"noise guessed from the {name}": (metrics - law.sample(bits, metrics.size))[::2]
        for name, bits in sources.items()
    }


def declared(target: Target, scale: int) -> list[Played]:
    units = 26_000 * scale
    with target.open() as attacked:
        reports, job = attacked.units(units, every=2), attacked.new_job()
        sent = [*reports, *attacked.nulls(100)]
        metrics = attacked.metrics(attacked.ask(attacked.parameters("1"), sent, 4 * units, job=job))
        return [compared(pairs(metrics, **guesses(job, metrics, 1_000_000)), units, attacked.charged(reports)[0])]


def repeated(target: Target, scale: int) -> list[Played]:
    units = 3_000 * scale
    with target.open() as attacked:
        reports = attacked.units(units, every=2)
        metrics = attacked.metrics(attacked.ask(attacked.parameters("1"), [*reports, *reports, *reports], 4 * units))
        return [compared(pairs(metrics), units, attacked.charged(reports)[0])]


def late(target: Target, scale: int) -> list[Played]:
    """Ask once without the reports of the units and once with them: they pay for the second job only."""
    units = 3_000 * scale
    with target.open() as attacked:
        reports, others = attacked.units(units, every=2), attacked.nulls(100)
        before = attacked.metrics(attacked.ask(attacked.parameters("1"), others, 4 * units))
        after = attacked.metrics(attacked.ask(attacked.parameters("1"), [*others, *reports], 4 * units))
        return [compared(pairs(after, gain=(after - before)[::2]), units, attacked.charged(reports)[0])]


def _shown(attacked: Attacked, reports: Sequence[AggregatableReport], keys: int, mask: int | None) -> Metrics:
    """Return the metrics of keys 0 to ``keys`` - 1 under discovery; -1 for those that are not shown."""
    summary = attacked.ask(attacked.parameters("4", discovery_delta="0.05", key_mask=mask), reports)
    attacked.metrics(summary)
    shown = np.full(keys, -1, dtype=np.int64)
    assert summary is not None
    for key, metric in summary.to_dict().items():
        if key < keys:
            shown[key] = metric
    return shown


def discovery(target: Target, scale: int, *, mask: int | None = None, share: int = 1) -> list[Played]:
    """Compare keys that others lift above 2τ, with and without the unit; and keys that one unit has or nobody has."""
    units, alone = 1_200 * scale // share, 3_000 * scale // share
    with target.open(_DISCOVERY, l0=1) as attacked:
        lifting = [
            attacked.report([Contribution(bucket=key, value=L1)]) for key in range(2 * units) for _ in range(_LIFT)
        ]
        reports = attacked.units(units)
        lonely = [attacked.report([Contribution(bucket=2 * units + at, value=L1)]) for at in range(alone)]
        shown = _shown(attacked, [*lifting, *reports, *lonely], 2 * units + 2 * alone, mask)
        epsilon, _, delta = attacked.charged(reports)
        return [
            compared({"metric": shown[: 2 * units]}, units, epsilon, delta=delta, name="lifted keys"),
            compared({"shown": shown[2 * units :]}, alone, epsilon, delta=delta, name="lone keys"),
        ]


def masked(target: Target, scale: int) -> list[Played]:
    """Play ``discovery`` under a mask that allows all its keys; check that lifted keys outside a mask are not shown."""
    units = 150 * scale
    allowed = discovery(target, scale, mask=(1 << 32) - 1, share=4)
    with target.open(_DISCOVERY, l0=1) as attacked:
        reports = [
            attacked.report([Contribution(bucket=key, value=L1)]) for key in range(units) for _ in range(_LIFT + 1)
        ]
        shown = _shown(attacked, reports, 2 * units, 1 << 40)
        epsilon, _, delta = attacked.charged(reports)
    return [*allowed, compared({"shown": shown}, units, epsilon, delta=delta, name="outside the mask")]


def others(target: Target, scale: int) -> list[Played]:
    """Compare the others total, one job per trial, when the unit's report holds a contribution and when it is null."""
    jobs = 260 * scale
    sums: tuple[list[int], list[int]] = ([], [])
    charged = 0.0
    with target.open() as attacked:
        asked = attacked.parameters("0.01", others_epsilon="2")
        for world, seen in enumerate(sums):
            for _ in range(jobs):
                report = attacked.report([] if world else [Contribution(bucket=7, value=L1)])
                summary = attacked.ask(asked, [report], 1)
                attacked.metrics(summary)
                assert summary is not None
                seen.append(summary.others or 0)
                charged = charged or attacked.charged([report])[0]
    first, second = ({"others": np.array(seen, dtype=np.int64)} for seen in sums)
    return [Played(first=first, second=second, epsilon=charged)]


def gaussian(target: Target, scale: int) -> list[Played]:
    """Compare Gaussian noise at ρ = ½ with the exact curve of the charged ρ, at δ = 0.1."""
    units, delta = 6_000 * scale, 0.1
    with target.open(ZcdpFilter(rho_micro=10_000_000)) as attacked:
        reports = attacked.units(units, every=2)
        metrics = attacked.metrics(attacked.ask(attacked.parameters(rho="0.5"), reports, 4 * units))
        epsilon = gaussian_epsilon(attacked.charged(reports)[1], delta)
        return [compared(pairs(metrics), units, epsilon, delta=delta)]


GAMES = (
    Game("declared keys", "noise of a wrong scale, shared between keys or guessed from the job id", declared),
    Game("discovery", "wrong noise or threshold of discovered keys, δ not charged", discovery, parts=2, own=True),
    Game("discovery with mask", "the same under a mask, keys shown outside it", masked, parts=3, own=True),
    Game("others total", "a total with too little noise, or that nobody pays for", others),
    Game("Gaussian noise", "a variance below that of the ρ charged", gaussian, own=True),
    Game("late reports", "noise used twice, so that the difference of two jobs is exact", late),
    Game("repeated report ids", "reports that count as often as they are sent", repeated),
)
