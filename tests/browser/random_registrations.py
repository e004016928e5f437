"""Random registrations: mostly well-formed, over few sites so that limits bind, and malformed at a stated rate."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ara_client.config import DEFAULT_COORDINATORS
from ara_client.registration.debug_reporting import SOURCE_TYPES, TRIGGER_TYPES
from ara_client.registration.headers import INFO_HEADER, SOURCE_HEADER, TRIGGER_HEADER

from ..mutations import mutated, mutated_text
from .attribution import Hop, Kind, Step
from .site import Header

MALFORMED = 0.3
"""The share of headers that are changed at random after they were made; about half of those are then refused."""
SCALARS: list[Any] = [
    None, True, 0, -1, 1.5, 2.0, 2**31, 2**53 + 1, 2**63, 2**64, 1e20, "", "0", "-1", "+1", "00", "0x1", "0X1",
    "x" * 70, "é", "\u0001", "\ud83d\ude00", "<\u2028/>", "\x7f\x80", [], {}, [[]], {"": {}}, "0x", " ",
    "https://a.test", ["https://a.test"] * 4, {"_lookback_window": 0}, {"_lookback_window": 5},
    {"source_type": ["event"]}, "18446744073709551616",
]  # fmt: skip
INFO = [
    "report-header-errors, preferred-platform=web", "report-header-errors=?0", "preferred-platform=os",
    "report-header-errors;a=1", "report-header-errors=1", "preferred-platform=\"web\"", "other, ,",
    "report-header-errors, preferred-platform=os", "Report-Header-Errors", "report-header-errors=?1, x",
]  # fmt: skip
FILTERS: list[Any] = [
    {"p": ["1"]}, {"q": ["x"]}, [{"p": ["2"]}, {"q": []}], {"source_type": ["navigation"]}, {"source_type": ["event"]},
    [], {"_lookback_window": 3600}, {"p": ["9"], "_lookback_window": 86400},
]  # fmt: skip
NOISE = '{}[]",:\\0123456789abcdefx-_;=?*()\té .E+<>&/\u2028\x7f'


@dataclass(slots=True)
class World:
    """The sites of one run."""

    rng: random.Random
    publishers: list[str] = field(init=False)
    shops: list[str] = field(init=False)
    adtechs: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.publishers = [f"news{number}.example" for number in range(self.rng.choice([1, 2, 3]))]
        self.shops = [f"shop{number}.example" for number in range(self.rng.choice([1, 2, 3]))]
        names = ["adtech.example", "other.example", "third.example", "sub.adtech.example"]
        self.adtechs = names[: self.rng.choice([1, 1, 2, 3, 4])]

    def steps(self, count: int) -> Iterator[Step]:
        """Yield random steps."""
        for _ in range(count):
            yield self._step()

    def _step(self) -> Step:
        rng = self.rng
        kind: Kind = rng.choices(["click", "view", "trigger", "plain", "either"], [25, 25, 20, 20, 10])[0]
        registers_source = kind in ("click", "view") or (kind == "either" and rng.random() < 0.5)
        if rng.random() < 0.03:
            registers_source = not registers_source
        context = rng.choice(self.publishers if registers_source else self.shops)
        count = rng.choices([1, 2, 3], [85, 11, 4])[0]
        hops = tuple(self._hop(source=registers_source) for _ in range(count))
        return Step(kind=kind, context=context, hops=hops)

    def _hop(self, *, source: bool) -> Hop:
        rng = self.rng
        made = self._source() if source else self._trigger()
        headers: list[Header] = [(SOURCE_HEADER if source else TRIGGER_HEADER, self._text(made))]
        if rng.random() < 0.02:
            headers.append((TRIGGER_HEADER if source else SOURCE_HEADER, "{}"))
        if rng.random() < 0.01:
            headers.append(headers[0])
        if rng.random() < 0.6:
            text = rng.choice(INFO) if rng.random() < 0.2 else "report-header-errors"
            headers.append((INFO_HEADER, text))
        return Hop(host=rng.choice(self.adtechs), headers=tuple(headers))

    def _text(self, made: dict[str, Any]) -> bytes:
        rng = self.rng
        if rng.random() >= MALFORMED:
            return json.dumps(made, ensure_ascii=rng.random() < 0.5).encode(errors="replace")
        identity = made.get("source_event_id")
        if rng.random() < 0.75:
            for _ in range(rng.choice([1, 1, 1, 2, 3])):
                made = mutated(made, rng, scalars=SCALARS, letters=NOISE)
            if identity is not None and isinstance(made, dict):
                made.setdefault("source_event_id", identity)  # noise is traced by the id
        text = json.dumps(made, ensure_ascii=rng.random() < 0.7)
        if rng.random() < 0.35:
            text = mutated_text(text, rng, letters=NOISE)
        raw = text.encode(errors="replace").replace(b"\r", b"").replace(b"\n", b"").replace(b"\0", b"")
        if rng.random() < 0.02:
            raw = raw[: rng.randrange(len(raw) + 1)] + b"\xff" + raw[-3:]
        return raw

    def _some(self, *choices: Any, share: float = 0.3) -> Any:
        """Return one of the choices, or None, which leaves the field out."""
        return self.rng.choice(choices) if self.rng.random() < share else None

    def _source(self) -> dict[str, Any]:
        rng = self.rng
        names = rng.sample(["a", "b", "c", "d"], rng.choice([0, 1, 2, 3]))
        sites = [f"https://{shop}" for shop in rng.sample(self.shops, rng.choice([1, 1, len(self.shops)]))]
        fields: dict[str, Any] = {
            "destination": sites[0] if len(sites) == 1 and rng.random() < 0.7 else sites,
            "source_event_id": str(rng.randrange(10**12)),
            "expiry": self._some("86400", 172801, 604800, 2592000, 1, "9999999999"),
            "priority": self._some("1", "-5", "9223372036854775807", share=0.2),
            "destination_limit_priority": self._some("1", "7", share=0.1),
            "debug_key": self._some(str(rng.randrange(1 << 64)), share=0.5),
            "debug_reporting": self._some(True, share=0.6),
            "filter_data": self._some({"p": ["1", "2"]}, {"p": ["1"], "q": ["x"]}, {"q": []}),
            "aggregation_keys": {name: hex(rng.randrange(1 << rng.choice([4, 64, 128]))) for name in names} or None,
            "named_budgets": self._some({"x": 10000, "y": 0}, {"x": 65536}, share=0.2),
            "aggregatable_report_window": self._some("86400", 3600, 1, share=0.1),
            "trigger_data": self._some([0, 1, 2], [], [5], list(range(8)), [1, 0], [4294967295], share=0.25),
            "trigger_data_matching": self._some("exact", "modulus", share=0.3),
            "max_event_level_reports": self._some(0, 1, 2, 3, 5, 20, share=0.2),
            "event_level_epsilon": self._some(14, 13.5, 10, 1, 0, share=0.1),
            "attribution_scopes": self._scopes(),
            "aggregatable_debug_reporting": self._debug_reporting(SOURCE_TYPES, budget=True),
        }
        windows = rng.random()
        if windows < 0.1:
            fields["event_report_window"] = rng.choice([3600, "86400", 604800])
        elif windows < 0.25:
            ends = sorted(rng.sample([3600, 7200, 86400, 172800, 604800, 1000000], rng.choice([1, 2, 3])))
            fields["event_report_windows"] = {"end_times": ends}
            if rng.random() < 0.3:
                fields["event_report_windows"]["start_time"] = rng.choice([0, 600, 3600])
        return {name: value for name, value in fields.items() if value is not None}

    def _scopes(self) -> dict[str, Any] | None:
        rng = self.rng
        if rng.random() >= 0.12:
            return None
        scopes: dict[str, Any] = {
            "limit": rng.choice([1, 2, 3, 20]),
            "values": rng.sample(["s", "t", "u"], rng.choice([1, 2])),
        }
        if rng.random() < 0.3:
            scopes["max_event_states"] = rng.choice([3, 5, 1000])
        return scopes

    def _debug_reporting(self, types: tuple[str, ...], *, budget: bool) -> dict[str, Any] | None:
        rng = self.rng
        if rng.random() >= 0.25:
            return None
        made: dict[str, Any] = {"key_piece": hex(rng.randrange(256))}
        if budget:
            made["budget"] = rng.choice([1024, 4096, 65536])
        if rng.random() < 0.9:
            listed = rng.sample(types, 3)
            common = [name for name in types if name.endswith(("success", "no-matching-source", "noised"))]
            made["debug_data"] = [
                {
                    "key_piece": hex(rng.randrange(256)),
                    "value": rng.choice([1, 500, 1024]),
                    "types": list(dict.fromkeys([*listed, *common])),
                }
            ]
            if rng.random() < 0.4:
                made["debug_data"].append({"key_piece": "0x9", "value": 65, "types": ["unspecified"]})
        if rng.random() < 0.1:
            made["aggregation_coordinator_origin"] = rng.choice(DEFAULT_COORDINATORS)
        return made

    def _filters(self, share: float = 0.2) -> dict[str, Any]:
        rng, found = self.rng, dict[str, Any]()
        for name in ("filters", "not_filters"):
            if rng.random() < share:
                found[name] = rng.choice(FILTERS)
        return found

    def _trigger(self) -> dict[str, Any]:
        rng = self.rng
        names = rng.sample(["a", "b", "c", "d"], rng.choice([0, 1, 2, 3]))
        unconditional = rng.random() < 0.25
        max_bytes = rng.choice([1, 2, 8]) if unconditional and rng.random() < 0.4 else None

        def value() -> Any:
            amount = rng.choice([1, 100, 5000, 32768, 65536])
            if rng.random() < 0.7:
                return amount
            return {"value": amount, "filtering_id": str(rng.randrange(256 ** (max_bytes or 1)))}

        values: Any = {name: value() for name in names}
        if rng.random() < 0.15:
            values = [{"values": values, **self._filters(0.5)}, {"values": {"a": 7}}]
        fields: dict[str, Any] = {
            "event_trigger_data": [
                {"trigger_data": str(rng.choice([0, 1, 2, 3, 5, 7, 9, 4294967295, 2**64 - 1])), **self._filters()}
                | {key: text for key, text in (("priority", self._some("1", "-3", "100")),
                                               ("deduplication_key", self._some("1", "2", share=0.15))) if text}
                for _ in range(rng.choice([0, 1, 1, 2]))
            ] or None,
            "aggregatable_trigger_data": [
                {"key_piece": hex(rng.randrange(1 << 20)), "source_keys": rng.sample("abc", 2), **self._filters()}
                for _ in range(rng.choice([0, 1, 2]))
            ] or None,
            "aggregatable_values": values or None,
            "aggregatable_deduplication_keys": self._some(
                [{"deduplication_key": "7"}], [{}], [{"deduplication_key": "8", **self._filters(0.8)}], share=0.15
            ),
            "debug_key": self._some(str(rng.randrange(1 << 64)), share=0.5),
            "debug_reporting": self._some(True, share=0.6),
            "named_budgets": self._some(
                [{"name": "x"}], [{"name": "y", **self._filters(0.5)}, {"name": "x"}], [{}], share=0.15
            ),
            "attribution_scopes": self._some(["s"], ["t", "u"], [], share=0.12),
            "aggregation_coordinator_origin": self._some(*DEFAULT_COORDINATORS, share=0.1),
            "aggregatable_debug_reporting": self._debug_reporting(TRIGGER_TYPES, budget=False),
            **self._filters(0.15),
        }  # fmt: skip
        if unconditional:
            fields["aggregatable_filtering_id_max_bytes"] = max_bytes
            fields["trigger_context_id"] = self._some(
                f"order-{rng.randrange(10**6)}", "é<\u2028", "", "y" * 64, share=0.8
            )
        elif rng.random() < 0.2:
            fields["aggregatable_source_registration_time"] = rng.choice(["include", "exclude"])
        return {name: value for name, value in fields.items() if value is not None}
