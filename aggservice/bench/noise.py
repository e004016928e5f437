"""Exact discrete-Laplace draws per second, secure bits included, over opendp's vector call, one core."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer

from aggservice.bench import conclude, interleaved
from aggservice.mechanisms import DiscreteLaplace, SecureBits
from aggservice.mechanisms.geometric import digits_of


def command(
    ours: Annotated[int, typer.Option(help="Our draws per round.")] = 10_000_000,
    theirs: Annotated[int, typer.Option(help="opendp's draws per round.")] = 200_000,
    full: Annotated[bool, typer.Option("--full", help="No effect: the promised size is the default.")] = False,
) -> None:
    """Exact discrete Laplace: draws per second over opendp's.

    Both draw at ε = 10, Λ₁ = 2¹⁶: our kernel on secure bits, and opendp's vector call.
    """
    import opendp.prelude as dp

    dp.enable_features("contrib")
    measurement = (dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)) >> dp.m.then_laplace(scale=6553.6)
    zeros = [0] * theirs
    noise = DiscreteLaplace(epsilon_micro=10_000_000, sensitivity=1 << 16)
    noise.sample(SecureBits(), 1)  # compile
    words = ours * digits_of(noise.rate).shifts.size
    chunk = np.frombuffer(SecureBits().read(1 << 18), dtype=np.uint64)
    target = np.empty_like(chunk)

    def copy() -> None:
        for _ in range(words // chunk.size):
            np.copyto(target, chunk)

    def draw_words() -> None:
        bits = SecureBits()
        for _ in range(words // chunk.size):
            bits.words(chunk.size)

    def draw() -> None:
        bits = SecureBits()
        for _ in range(ours // 1_000_000):
            noise.sample(bits, 1_000_000)

    times = interleaved({"ours": draw, "theirs": lambda: measurement(zeros), "bits": draw_words, "copy": copy})
    our_rate, their_rate = (ours // 1_000_000) * 1_000_000 / times["ours"], theirs / times["theirs"]
    megabytes = words * 8 / 1e6
    print(f"ours          {our_rate:14,.0f} draws/s")
    print(f"opendp        {their_rate:14,.0f} draws/s")
    print(f"secure bits   {megabytes / times['bits']:14,.0f} MB/s, {times['bits'] / times['ours']:.1%} of our time")
    print(f"a bare copy of the same bytes takes {times['copy'] / times['ours']:.1%} of our time")
    conclude(
        our_rate / their_rate,
        "our exact discrete-Laplace draws per second over opendp's, one core",
        f"{our_rate:,.0f} against {their_rate:,.0f} draws/s",
    )
