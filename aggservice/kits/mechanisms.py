"""The kit of mechanisms, key discovery rules and filters: what each states, against its own noise.

Neighbours differ by one unit, which moves the sums by at most Λ₁ in at most Λ₀ keys. At tiny bounds every such move is
tried, and its loss follows from the law of the noise: pure loss from ratios, zCDP from Rényi divergences, and the δ of
key discovery from the probabilities of every result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from scipy.stats import chi2

from aggservice.kits.failures import KitFailure
from aggservice.mechanisms import NoiseLaw, SecureBits
from budget import MECHANISMS, Delta, DiscoveryRule, Filter, LaplaceNoise, Mechanism, OneUseNoise, Release, Sensitivity
from budget.errors import BudgetError, MechanismNotAllowedError
from budget.filters import filter_from_plain, filter_to_plain
from budget.mechanisms import mechanism_from_plain

BOUNDS = Sensitivity(l1=3, l0=2)
"""The bounds at which every move of a unit is tried."""
FALSE_ALARM = 1e-9
"""The chance that ``check_noise`` fails although the samples follow the law."""
_DRAWS = 40_000
_FLOAT = 1e-12
_ORDERS = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)


def check_mechanism(mechanism: Mechanism, bounds: Sensitivity = BOUNDS) -> None:
    """Raise ``KitFailure`` unless a mechanism reads back from the log, its noise is a law, and its price covers it."""
    check_form(mechanism)
    if mechanism.of_reports:
        return
    noise = mechanism.noise(bounds)
    check_noise(noise, mechanism.name)
    moves = mechanism.moves(bounds)
    steps = range(1, moves + 1)
    pure = _pure_price(mechanism)
    if pure is not None:
        loss = max(sum(_largest_ratio(noise, one) for one in part) for part in _moves(moves, bounds.l0))
        if loss > pure + _FLOAT:
            _fail(
                mechanism,
                f"it states ε = {pure:g}, but a unit that moves the sums by {moves} loses {loss:.6g}: its cost is too "
                "small, or its noise too narrow",
            )
        if noise.largest is not None:
            _check_bounded(mechanism, noise, moves, bounds.l0)
    rho = mechanism.zcdp_micro / 1e6
    for order, step in itertools.product(_ORDERS, steps):
        found = _renyi(noise, step, order) * (moves / step)
        if found > rho * order * (1 + 1e-9) + _FLOAT:
            _fail(
                mechanism,
                f"it states ρ = {rho:g}, but its Rényi divergence of order {order:g} is {found:.6g}, above ρ · order",
            )
    if isinstance(mechanism, DiscoveryRule):
        check_discovery(mechanism, bounds)


def check_form(mechanism: Mechanism) -> None:
    """Raise ``KitFailure`` unless the mechanism comes back unchanged from its form in a log, and its price is whole."""
    plain = mechanism.to_plain()
    try:
        read = mechanism_from_plain(plain)
    except BudgetError as problem:
        raise KitFailure(f"{mechanism.name}: its form in a log cannot be read back: {problem}") from problem
    if read != mechanism or type(read) is not type(mechanism):
        _fail(mechanism, "its form in a log reads back as another mechanism")
    if not all(isinstance(text, str) for text in plain.values()):
        _fail(mechanism, "its form in a log has values that are not text")
    for name in ("zcdp_micro", "delta_atto", *(("pure_micro",) if _pure_price(mechanism) is not None else ())):
        price = getattr(mechanism, name)
        if type(price) is not int or price < 0:
            _fail(mechanism, f"its {name} is {price!r}: a price is a whole number, 0 or more")
    if not mechanism.words:
        _fail(mechanism, "it has no words for what a unit paid")


def check_noise(noise: NoiseLaw, name: str = "the noise") -> None:
    """Raise ``KitFailure`` unless a law's probabilities add up to 1 and its samples follow them.

    Samples come from secure bits; the comparison fails by chance once in 10⁹ runs.
    """
    reach = noise.half_width(Fraction(10**6 - 1, 10**6)) if noise.largest is None else noise.largest
    values = range(-reach, reach + 1)
    tolerance = _FLOAT if noise.exact else 1e-9
    chances = [float(noise.pmf(x)) for x in values]
    if min(chances) < 0:
        raise KitFailure(f"{name}: its law has a negative probability")
    for x, chance in zip(values, chances, strict=True):
        if abs(float(noise.cdf(x)) - float(noise.cdf(x - 1)) - chance) > tolerance:
            raise KitFailure(f"{name}: P[X = {x}] is not P[X ≤ {x}] - P[X ≤ {x - 1}]")
        if abs(chance - chances[reach - x]) > tolerance:
            raise KitFailure(f"{name}: its law is not symmetric: {x} and {-x} have different probabilities")
        if abs(float(noise.cdf(x)) + float(noise.cdf(-x - 1)) - 1) > tolerance:
            raise KitFailure(f"{name}: P[X ≤ {x}] + P[X ≤ {-x - 1}] is not 1, so that its law does not add up to 1")
    beyond = 0.0 if noise.largest is not None else 2 * float(noise.cdf(-reach - 1))
    if abs(math.fsum(chances) + beyond - 1) > tolerance * len(chances):
        raise KitFailure(f"{name}: its probabilities add up to {math.fsum(chances) + beyond:.9g}, not to 1")
    drawn = noise.sample(SecureBits(), _DRAWS)
    if drawn.dtype != np.int64 or drawn.size != _DRAWS:
        raise KitFailure(f"{name}: sample must return as many 64-bit integers as it is asked for")
    if noise.largest is not None and np.abs(drawn).max() > noise.largest:
        raise KitFailure(f"{name}: a sample lies beyond its largest value, {noise.largest}")
    _check_samples(drawn, np.array(chances), reach, name)


def check_discovery(rule: DiscoveryRule, bounds: Sensitivity = BOUNDS) -> None:
    """Raise ``KitFailure`` unless a rule hides keys with a sum of 0, and its δ covers what one unit can show."""
    tau, noise = rule.threshold(bounds), rule.discovered_noise(bounds)
    check_noise(noise, f"{rule.name}, discovered keys")
    if noise.largest is None or noise.largest > tau:
        _fail(
            rule,
            f"its threshold is {tau}, and noise up to {noise.largest or 'any size'} carries a sum of 0 above it: a key "
            "that no report contributed to could be released",
        )
    epsilon, stated = rule.pure_micro / 1e6, rule.delta_atto / 1e18
    for part in _moves(bounds.l1, bounds.l0):
        for base in {0, 1, tau}:
            found = _delta(noise, tau, [(base, base + one) for one in part], epsilon)
            if found > stated + _FLOAT:
                _fail(
                    rule,
                    f"it states δ = {stated:g}, but a unit that adds {part} to keys with {base} shows itself with "
                    f"δ = {found:.6g}",
                )


def check_rule_beside(rule: type[DiscoveryRule], declared: Mechanism | None = None) -> None:
    """Raise ``KitFailure`` unless a rule can be made for declared keys with this noise, at no higher price of ε.

    Without ``declared``, the noise is the first of those that jobs can name which the rule takes.
    """
    delta, refusal = Delta.parse("0.05"), ""
    named = [one.example() for one in map(MECHANISMS.__getitem__, MECHANISMS) if one.in_jobs]
    for noise in named if declared is None else [declared]:
        try:
            made = rule.beside(noise, delta)
        except BudgetError as problem:
            refusal = refusal or str(problem)
            continue
        if made.delta_atto != delta.atto or made.pure_micro < noise.pure_micro:
            _fail(made, "a job states ε and δ, and the rule that it makes of them has a smaller price")
        check_mechanism(made)
        return
    raise KitFailure(f"{rule.name}: it can be made beside no noise that a job can name: {refusal}")


def check_filter(chosen: Filter) -> None:
    """Raise ``KitFailure`` unless a filter reads back from a ledger, adds up costs, and takes all uses if final."""
    if filter_from_plain(filter_to_plain(chosen)) != chosen:
        raise KitFailure(f"{chosen.name}: its form in a ledger reads back as another filter")
    one, two = LaplaceNoise.parse(epsilon="0.5"), LaplaceNoise.parse(epsilon="1.25")
    alone = [chosen.cost(Release(mechanisms=(each,))).loss_micro for each in (one, two)]
    both = chosen.cost(Release(mechanisms=(one, two)))
    if both.loss_micro < sum(alone):
        raise KitFailure(
            f"{chosen.name}: two mechanisms in one release cost {both.loss_micro}e-6, less than apart ({sum(alone)}e-6)"
        )
    if min(alone) < 1 or alone[0] >= alone[1] or both.uses != 1:
        raise KitFailure(f"{chosen.name}: a larger ε must cost more, and a release one use")
    final = Release(mechanisms=(OneUseNoise.example(),))
    if chosen.cost(final).uses != chosen.limit.uses:
        raise KitFailure(f"{chosen.name}: a release that is final for its units must take all of their uses")
    if chosen.limit.loss_micro < 1 or chosen.limit.left_of(chosen.limit).loss_micro:
        raise KitFailure(f"{chosen.name}: its limit must be above 0, and nothing left after it is spent")


def _fail(mechanism: Mechanism, sentence: str) -> None:
    raise KitFailure(f"{mechanism.name}: {sentence}")


def _pure_price(mechanism: Mechanism) -> float | None:
    try:
        return mechanism.pure_micro / 1e6
    except MechanismNotAllowedError:
        return None


def _moves(total: int, keys: int) -> Iterator[tuple[int, ...]]:
    """Yield how a unit can divide what it contributes over keys, largest first."""
    for count in range(1, keys + 1):
        for part in itertools.combinations_with_replacement(range(total, 0, -1), count):
            if sum(part) <= total:
                yield part


def _largest_ratio(noise: NoiseLaw, step: int) -> float:
    """Return the largest log ratio of the noise and the noise moved by ``step``, where both are possible."""
    reach = noise.largest if noise.largest is not None else 3 * step + noise.half_width()
    found = 0.0
    for x in range(-reach, reach + 1):
        here, there = float(noise.pmf(x)), float(noise.pmf(x - step))
        if here > 0 and there > 0:
            found = max(found, math.log(here / there))
    return found


def _check_bounded(mechanism: Mechanism, noise: NoiseLaw, moves: int, keys: int) -> None:
    """Compare δ with what noise of bounded size shows: results that are possible only with the unit, or without it."""
    assert noise.largest is not None
    base, epsilon, stated = 2 * noise.largest + 1, mechanism.pure_micro / 1e6, mechanism.delta_atto / 1e18
    for part in _moves(moves, keys):
        found = _delta(noise, -1, [(base, base + one) for one in part], epsilon)
        if found > stated + _FLOAT:
            _fail(
                mechanism,
                f"it states δ = {stated:g}, but its noise is at most {noise.largest}, and a unit that moves the sums "
                f"by {part} shows itself with δ = {found:.6g}",
            )


def _renyi(noise: NoiseLaw, step: int, order: float) -> float:
    """Return the Rényi divergence between the noise and the noise moved by ``step``."""
    reach = noise.half_width(Fraction(10**9 - 1, 10**9)) + step
    total = 0.0
    for x in range(-reach, reach + 1):
        here, there = float(noise.pmf(x)), float(noise.pmf(x - step))
        if here > 0 and there > 0:
            total += math.exp(order * math.log(here) + (1 - order) * math.log(there))
    return max(0.0, math.log(total) / (order - 1))


def _delta(noise: NoiseLaw, tau: int, keys: list[tuple[int, int]], epsilon: float) -> float:
    """Return the δ between results for keys with sums (without the unit, with it), in the worse direction."""
    laws = [tuple(_released(noise, tau, one) for one in pair) for pair in keys]
    found = 0.0
    for flip in (0, 1):
        excess = 0.0
        for results in itertools.product(*({*one, *other} for one, other in laws)):
            here = math.prod(law[flip].get(one, 0.0) for law, one in zip(laws, results, strict=True))
            there = math.prod(law[1 - flip].get(one, 0.0) for law, one in zip(laws, results, strict=True))
            excess += max(0.0, here - math.exp(epsilon) * there)
        found = max(found, excess)
    return found


def _released(noise: NoiseLaw, tau: int, total: int) -> dict[int | None, float]:
    """Return the law of what is released for a key: None if it stays hidden. A key with a sum of 0 is not there."""
    if total == 0:
        return {None: 1.0}
    reach = noise.largest if noise.largest is not None else noise.half_width(Fraction(10**9 - 1, 10**9))
    law: dict[int | None, float] = {None: 0.0}
    for x in range(-reach, reach + 1):
        result = total + x if total + x > tau else None
        law[result] = law.get(result, 0.0) + float(noise.pmf(x))
    return law


def _check_samples(drawn: np.ndarray, chances: np.ndarray, reach: int, name: str) -> None:
    """Compare samples with their law by a chi-square test over values that are expected at least 50 times."""
    counts = np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=chances.size)
    often = chances * _DRAWS >= 50
    observed = np.append(counts[often], _DRAWS - counts[often].sum())
    expected = np.append(chances[often] * _DRAWS, _DRAWS * (1 - chances[often].sum()))
    kept = expected >= 5
    statistic = float(((observed[kept] - expected[kept]) ** 2 / expected[kept]).sum())
    if chi2.sf(statistic, max(1, int(kept.sum()) - 1)) < FALSE_ALARM:
        raise KitFailure(
            f"{name}: {_DRAWS:,} samples do not follow its law (chi-square {statistic:.1f} with {int(kept.sum()) - 1} "
            "degrees of freedom)"
        )
