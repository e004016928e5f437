"""``aggservice noise``: how much noise an ε adds, and how large a slice must be for a small error."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from aggservice.commands.console import Json, option, refuse, show
from aggservice.mechanisms import DiscreteLaplace, discovery_threshold
from aggservice.mechanisms.laplace import micro_of

_LEVEL = Fraction(95, 100)


def noise(
    epsilon: Annotated[str, option("ε of the job, as decimal text.")] = "10",
    scale: Annotated[float, option("What one counted unit contributes (the scale of a measure).")] = 1.0,
    l1: Annotated[int, option("Λ₁, what one privacy unit can contribute.")] = 65_536,
    error: Annotated[float, option("The relative error you want.", min=1e-6, max=1.0)] = 0.05,
    delta: Annotated[str, option("δ of key discovery; 0: keys are declared.")] = "0",
    keys: Annotated[int, option("How many keys one slice adds up.", min=1)] = 1,
    as_json: Json = False,
) -> None:
    """Say how much noise an ε adds and how large slices must be.

    Noise is exact discrete Laplace of scale Λ₁/ε on every key. Divided by --scale it is in counted units.
    """
    if not scale > 0:
        refuse(f"--scale is {scale}: write what one counted unit contributes, such as 60")
    law = DiscreteLaplace(epsilon=epsilon, sensitivity=l1)
    deviation = (keys * float(law.variance())) ** 0.5
    plain: dict[str, object] = {
        "epsilon": epsilon,
        "l1": l1,
        "scale": scale,
        "standard_deviation": deviation,
        "standard_deviation_in_units": deviation / scale,
        "half_width_95_of_a_key_in_units": law.half_width(_LEVEL) / scale,
        "error": error,
        "units_needed": deviation / scale / error,
    }
    lines = [
        f"noise on a slice of {keys} key(s), ε = {epsilon}, Λ₁ = {l1:,}:",
        f"  standard deviation  {deviation:,.1f} contributions = {deviation / scale:,.2f} counted units",
        f"  95 of 100 keys      within ±{law.half_width(_LEVEL) / scale:,.2f} counted units",
        f"  an error of {error:.1%}    needs a slice of about {deviation / scale / error:,.0f} counted units",
    ]
    if Fraction(delta):
        atto = Fraction(delta) * 10**18
        threshold = discovery_threshold(epsilon_micro=micro_of(epsilon), delta_atto=int(atto), l1=l1, l0=l1)
        plain["threshold_in_units"] = threshold / scale
        lines.append(f"  discovery           hides keys below about {threshold / scale:,.1f} counted units")
    lines.append("A larger scale makes the same noise smaller in counted units, until a unit's contributions reach Λ₁.")
    show(plain, lines, as_json=as_json)
