"""The paper's algorithms against the paper's examples, its bounds and the counting of states."""

from __future__ import annotations

import inspect
import random
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from aggservice.mechanisms import Bits, ForbiddenBits, ParameterError, SecureBits, SeededBits
from ara_client import StateSpace, TriggerDataSpec, model
from ara_client.event_noise.response import exact_rate
from ara_client.event_noise.state_space import StateReport
from ara_client.model import (
    EventClient,
    EventReport,
    EventSource,
    InteractiveRandomizedResponse,
    PaperReport,
    Source,
    SummaryClient,
    Trigger,
    TrigSpec,
    outputs_of,
)

FALSE_ALARM = 1e-7
SHOES = "shoes-website.com"
SNEAKERS, SANDALS = 0, 1
ALL = frozenset({"sneakers", "sandals", "flip-flops"})


def noisy_reports(
    client: EventClient, s: EventSource, triggers: Iterable[Trigger], *, epsilon: Fraction, bits: Bits
) -> list[tuple[int, EventReport]]:
    """Return what is sent for one source and its triggers in order of time: Algorithm 8 over Algorithm 4's windows."""
    client.register_source(s)
    response = InteractiveRandomizedResponse(epsilon=epsilon, outputs=outputs_of(s), bits=bits)
    waiting, sent = list(triggers), []
    for end, spec in s.window_ends():
        while waiting and waiting[0].time < end:
            client.register_trigger(waiting.pop(0))
        truth = tuple(client.pass_window(s, spec))
        sent += [(end, report) for report in response.answer(truth, lambda y: y)]
    return sent


def test_the_model_fits_on_200_lines() -> None:
    assert len(inspect.getsource(model).splitlines()) <= 200


def figure_3() -> EventSource:
    """Days count from registration: sneakers report after days 2 and 7 at $20 and $70, sandals 1 and 5, $10 and $50."""
    return EventSource(
        src_id=9,
        dest=SHOES,
        registered=0,
        exp_date=7,
        src_filt=ALL,
        max_rep=3,
        trig_spec=(TrigSpec(SNEAKERS, (2, 7), (20, 70)), TrigSpec(SANDALS, (1, 5), (10, 50))),
    )


def test_figure_1_sends_key_and_value_70() -> None:
    """The figure writes the keys as strings and concatenates; here they are bits side by side, so OR does the same."""
    client = SummaryClient(contribution_budget=1 << 16, sparsity_budget=20, bits=SeededBits("figure 1"))
    campaign, purchase = int.from_bytes(b"Thanks:", "big") << 64, int.from_bytes(b"shoes-vl", "big")
    client.register_source(Source(src_id=1, dest=SHOES, exp_date=21, src_filt=ALL, src_key=campaign))
    bought = frozenset({"sneakers"})
    sent = client.register_trigger(19, dest=SHOES, trig_id=7, trig_filt=bought, trig_key=purchase, trig_value=70)
    assert sent[1:] == (campaign | purchase, 70, 7)
    assert campaign | purchase == int.from_bytes(b"Thanks:" + b"shoes-vl", "big")
    # Three days after the ad nothing is attributed any more, and the null report says nothing but its trigId.
    late = client.register_trigger(21, dest=SHOES, trig_id=8, trig_filt=bought, trig_key=purchase, trig_value=70)
    assert late[1:] == (None, None, 8)
    assert late.report_id != sent.report_id


def test_budgets_fall_through_to_the_next_source_as_printed() -> None:
    client = SummaryClient(contribution_budget=100, sparsity_budget=2, bits=SecureBits())
    for src_id in (1, 2):
        client.register_source(Source(src_id=src_id, dest="d", exp_date=9, src_filt=ALL, src_key=src_id << 8))

    def value(amount: int) -> PaperReport:
        return client.register_trigger(1, dest="d", trig_id=0, trig_filt=ALL, trig_key=0, trig_value=amount)

    assert [value(v).key for v in (60, 60, 40, 1, 0, 41, 40, 1)] == [512, 256, 512, 256, None, None, None, None]


def test_figure_3_day_by_day() -> None:
    source, client = figure_3(), EventClient()
    client.register_source(source)
    sent: dict[int, list[EventReport]] = {}
    bought = {1: (SNEAKERS, 30), 2: (SANDALS, 60), 4: (SNEAKERS, 65), 6: (SNEAKERS, 10)}
    values = {}
    for day in range(1, 8):
        if day in bought:
            # A purchase of day d falls between the ends of days d-1 and d.
            data, value = bought[day]
            client.register_trigger(Trigger(day - 1, SHOES, frozenset({"sneakers", "sandals"}), data, value))
        sent[day] = [report for _, report in client.pass_windows(day - 1, day)]
        values[day] = (client.v[source, SNEAKERS], client.v[source, SANDALS])
    assert sent == {
        1: [],
        2: [EventReport(9, SNEAKERS, 20)],
        3: [],
        4: [],
        5: [EventReport(9, SANDALS, 10), EventReport(9, SANDALS, 50)],
        6: [],
        7: [],
    }
    assert values == {1: (30, 0), 2: (30, 60), 3: (30, 60), 4: (95, 60), 5: (95, 60), 6: (105, 60), 7: (105, 60)}
    assert client.u == {(source, SNEAKERS): 70, (source, SANDALS): 50}
    client.register_trigger(Trigger(7, SHOES, ALL, SNEAKERS, 1000))
    assert client.v[source, SNEAKERS] == 105, "an inactive source must not be attributed to"


def test_table_1_lists_27_outputs() -> None:
    outputs = outputs_of(figure_3())
    assert len(outputs) == len(set(outputs)) == 27
    # Entries are for the ends of days 1 (sandals), 2 (sneakers), 5 (sandals), 7 (sneakers).
    assert Counter(len(out[0]) * 10 + len(out[2]) for out in outputs).keys() == {0, 1, 2, 10, 11, 20}
    assert all(sum(map(len, out)) <= 3 for out in outputs)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3), st.integers(0, 4))
def test_listed_outputs_are_the_numbered_states(shape: list[tuple[int, int]], max_rep: int) -> None:
    if (sum(windows for windows, _ in shape)) > 6:
        shape = shape[:2]
    spec = tuple(
        TrigSpec(data, tuple(range(data + 1, data + 1 + 10 * windows, 10)), tuple(range(1, buckets + 1)))
        for data, (windows, buckets) in enumerate(shape)
    )
    source = EventSource(src_id=1, dest="d", registered=0, exp_date=99, src_filt=ALL, max_rep=max_rep, trig_spec=spec)
    space = StateSpace(
        [TriggerDataSpec(trigger_data=data, windows=w, buckets=b) for data, (w, b) in enumerate(shape)], max_rep
    )
    listed = set()
    for output in outputs_of(source):
        reports = [
            StateReport(report.trig_data, at.windows.index(end), report.bucket - 1)
            for sent, (end, at) in zip(output, source.window_ends(), strict=True)
            for report in sent
        ]
        listed.add(space.rank(reports))
    assert listed == set(range(space.count))


def test_truthful_answers_are_those_of_algorithm_4() -> None:
    """At ε = 40 the client is truthful but for one time in 10¹⁶: Figure 3 again, through Algorithm 8."""
    triggers = [
        Trigger(0, SHOES, ALL, SNEAKERS, 30),
        Trigger(1, SHOES, ALL, SANDALS, 60),
        Trigger(3, SHOES, ALL, SNEAKERS, 65),
        Trigger(5, SHOES, ALL, SNEAKERS, 10),
    ]
    sent = noisy_reports(EventClient(), figure_3(), triggers, epsilon=Fraction(40), bits=SecureBits())
    assert sent == [(2, (9, SNEAKERS, 20)), (5, (9, SANDALS, 10)), (5, (9, SANDALS, 50))]


def test_interactive_response_agrees_with_its_law_at_epsilon_one() -> None:
    """About 300 draws per state over the 27 of Figure 3, one of which is true: rejects with probability 2e-7."""
    outputs = outputs_of(figure_3())
    bits, draws = SecureBits(), 27 * 330
    true = 5
    seen: Counter[int] = Counter()
    for _ in range(draws):
        response = InteractiveRandomizedResponse(epsilon=Fraction(1), outputs=outputs, bits=bits)
        answers = [response.answer(None, lambda _, at=at: outputs[true][at]) for at in range(4)]
        seen[outputs.index(tuple(answers))] += 1
        assert response.s_star is None or tuple(answers) == response.s_star, "the choice is made once, at registration"
    rate = float(exact_rate(27, Fraction(1)))
    expected = [draws * (rate / 27 + (1 - rate) * (index == true)) for index in range(27)]
    assert stats.chisquare([seen[index] for index in range(27)], expected).pvalue > FALSE_ALARM


@pytest.mark.parametrize("honest", [True, False])
def test_a_truthful_answer_outside_the_valid_combinations_is_refused_whatever_was_drawn(honest: bool) -> None:
    class Drawn(InteractiveRandomizedResponse[str]):
        def draw(self) -> list[str] | None:
            return None if honest else ["a", "a"]

    for path in (["c"], ["a", "c"], ["b", "a"]):
        response = Drawn(epsilon=Fraction(1), outputs=[["a", "a"], ["a", "b"], ["b", "b"]], bits=ForbiddenBits())
        with pytest.raises(ParameterError, match="not in O"):
            for answer in path:
                response.answer(None, lambda _, answer=answer: answer)


def test_epsilon_zero_is_never_truthful() -> None:
    response = InteractiveRandomizedResponse[str](epsilon=Fraction(0), outputs=[["random"]], bits=ForbiddenBits())
    with pytest.raises(Exception, match="must not draw"):
        InteractiveRandomizedResponse[str](epsilon=Fraction(0), outputs=[["a"], ["b"]], bits=ForbiddenBits()).answer(
            None, lambda _: "truth"
        )
    assert response.i == 1


def bounded_contributions(operations: int, *, contribution_budget: int, sparsity_budget: int, seed: int) -> int:
    """Run random operations on ``SummaryClient``; check what was sent for each source against both budgets.

    The source of a report is read from its key, not from the client's own books. Returns the number of reports.
    """
    rng = random.Random(seed)
    client = SummaryClient(
        contribution_budget=contribution_budget, sparsity_budget=sparsity_budget, bits=SeededBits(seed)
    )
    filters = [frozenset(f) for f in (("a",), ("b",), ("a", "b"), ())]
    now = sources = sent = 0
    total: Counter[int] = Counter()
    count: Counter[int] = Counter()
    for _ in range(operations):
        now += rng.randrange(3)
        dest = rng.choice("xyz")
        if rng.random() < 0.25:
            sources += 1
            client.register_source(
                Source(src_id=sources, dest=dest, exp_date=now + rng.randrange(1, 60),
                       src_filt=rng.choice(filters), src_key=sources << 32)
            )  # fmt: skip
            continue
        value = rng.choice((0, 1, rng.randrange(contribution_budget + 1), contribution_budget // 2))
        report = client.register_trigger(
            now, dest=dest, trig_id=0, trig_filt=rng.choice(filters), trig_key=rng.randrange(1 << 32), trig_value=value
        )
        if report.key is not None and report.value is not None:
            sent += 1
            total[report.key >> 32] += report.value
            count[report.key >> 32] += 1
    assert max(total.values()) <= contribution_budget
    assert max(count.values()) <= sparsity_budget
    assert contribution_budget in total.values(), "the contribution budget was never spent: the test shows nothing"
    assert sparsity_budget in count.values(), "the sparsity budget was never spent: the test shows nothing"
    return sent


@pytest.mark.parametrize(("contribution_budget", "sparsity_budget"), [(1 << 16, 5), (30, 6)])
def test_contributions_are_bounded(contribution_budget: int, sparsity_budget: int) -> None:
    """Under a million random operations in all, no source sends more than either budget."""
    sent = bounded_contributions(
        500_000, contribution_budget=contribution_budget, sparsity_budget=sparsity_budget, seed=sparsity_budget
    )
    assert sent > 100_000
