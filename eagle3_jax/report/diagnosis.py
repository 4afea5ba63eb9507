"""A diagnosis as pictures and as one page that needs nothing beside it.

Both read the diagnosis as `eagle3-jax diagnose --json` writes it: what is not finite is `None`.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jinja2

from eagle3_jax.report.pictures import (
    Bar,
    Spread,
    draw_lengths,
    draw_likeness,
    draw_norms,
    draw_readings,
    png_of,
    told_number,
)

PICTURES = ("readings", "joint", "norms", "likeness")  # all that there may be, by name
_SHOWN = 12  # readings; the configured one and the best supported one always are
_HEALTHY = "wired as configured"
_NOBODY_KNOWS = "cannot tell"


class Picture(NamedTuple):
    """One picture of a diagnosis.

    Attributes:
        name: one of `PICTURES`.
        png: the bytes of a PNG file.
        alt: what is seen, in words.
    """

    name: str
    png: bytes
    alt: str

    @property
    def uri(self) -> str:
        """The picture itself as an address."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode('ascii')}"


def draw_diagnosis(found: Mapping[str, Any]) -> tuple[Picture, ...]:
    """Every picture that a diagnosis has figures for.

    Args:
        found: the diagnosis as JSON has it.
    """
    rows = shown_readings(found)
    pictures = [_draw_lengths(found, rows), _draw_joint(found)] if rows else []
    if found["slots"]["slots"]:
        pictures.append(_draw_norms(found["slots"]["slots"]))
    if found["slots"]["neighbours"]:
        pictures.append(_draw_likeness(found["slots"]["neighbours"]))
    return tuple(pictures)


def render_diagnosis(found: Mapping[str, Any], pictures: Sequence[Picture]) -> str:
    """A diagnosis as one HTML page, pictures and all.

    Args:
        found: the diagnosis as JSON has it.
        pictures: of `draw_diagnosis`.
    """
    loader = jinja2.PackageLoader("eagle3_jax.report")
    page = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page.filters |= {"figure": _figure, "percent": _percent, "written": _written}
    kind = found["verdict"]["kind"]
    return page.get_template("diagnosis.html").render(
        found=found,
        tone={_HEALTHY: "fine", _NOBODY_KNOWS: "unknown"}.get(kind, "fault"),
        pictures={picture.name: picture for picture in pictures},
        rows=shown_readings(found),
        best=best_reading(found),
        plain=configured_reading(found),
        standing=_standing(found),
        nearest=nearest_reference,
        short=lambda row: _short(found, row),
    )


def configured_reading(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The reading without changes; `None` where none was tried."""
    return next((row for row in found["readings"] if not row["changes"]), None)


def best_reading(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The reading that the verdict stands for, where it is another than the configured one."""
    named = found["verdict"]["reading"]
    rows = found["readings"] if named else ()
    return next((row for row in rows if row["changes"] == named), None)


def shown_readings(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The readings that are worth their place, best first."""
    always = (configured_reading(found), best_reading(found))
    rows = enumerate(found["readings"])
    return [row for place, row in rows if place < _SHOWN or row in always]


def nearest_reference(slot: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a slot is most like: equal in most tokens, then least in error; `None` where unknown."""
    compared = [
        match
        for match in (*slot["boundaries"], *slot["tables"])
        if match["compared"] and match["error"] is not None
    ]
    return min(compared, key=lambda match: (-match["equal"], match["error"]), default=None)


def _draw_lengths(found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Picture:
    best, plain = best_reading(found), configured_reading(found)
    bars = []
    for row in rows:
        length = row["tokens_per_round"]
        if row is (best or plain):
            bars.append(Bar(row["reading"], length, "best"))
        elif row is plain:
            bars.append(Bar(row["reading"], length, "configured"))
        else:
            bars.append(Bar(_short(found, row), length, "other"))
    story = (
        f"The {len(bars)} of {found['compared']} readings that came furthest. Near ties do not "
        "displace the configured one."
    )
    figure = draw_lengths(bars, title="Tokens per round, by reading", story=story)
    told = "; ".join(f"{bar.told}: {bar.length:.2f}" for bar in bars)
    return Picture("readings", png_of(figure), f"Bars of tokens per round. {told}.")


def _draw_joint(found: Mapping[str, Any]) -> Picture:
    best, plain = best_reading(found), configured_reading(found)
    chosen = {_standing(found): best, "as configured": plain}
    readings = {name: _steps(row) for name, row in chosen.items() if row is not None}
    figure = draw_readings(
        readings,
        title="Joint accuracy, step by step",
        story="Share of the counted columns at which this step and all before it are right.",
    )
    told = "; ".join(
        f"{name}: {', '.join(_percent(step['joint']) for step in one['steps'])}"
        for name, one in readings.items()
    )
    return Picture("joint", png_of(figure), f"Bars of joint accuracy at steps from 0. {told}.")


def _steps(row: Mapping[str, Any]) -> dict[str, Any]:
    """A reading as `metrics.figures` has it."""
    steps = [{"step": step, "joint": share} for step, share in enumerate(row["joint"])]
    return {"steps": steps, "tokens_per_round": row["tokens_per_round"]}


def _draw_norms(slots: Sequence[Mapping[str, Any]]) -> Picture:
    spreads = [
        Spread(slot["name"], *(slot["norms"][name] for name in Spread._fields[1:]))
        for slot in slots
    ]
    story = (
        "Norms mostly rise from boundary to boundary: they suggest what a slot is, and prove "
        "nothing. Massive activations of the first token show as a distance at position 0."
    )
    figure = draw_norms(spreads, title="How large the stored states are", story=story)
    told = "; ".join(
        f"{one.name}: {_figure(one.median)}, position 0 {_figure(one.first)}" for one in spreads
    )
    return Picture("norms", png_of(figure), f"Median norms of stored states, log scale. {told}.")


def _draw_likeness(neighbours: Sequence[Mapping[str, Any]]) -> Picture:
    pairs = [(f"{pair['one']} and {pair['other']}", pair["cosine"]) for pair in neighbours]
    story = (
        "The stream changes a little in every layer: boundaries far apart are less alike than near "
        "ones. A cosine of 1 says that two slots may hold the same."
    )
    figure = draw_likeness(pairs, title="How alike neighbouring slots are", story=story)
    told = "; ".join(f"{name}: {_figure(cosine, '.2f')}" for name, cosine in pairs)
    return Picture("likeness", png_of(figure), f"Bars of cosines between slots. {told}.")


def _standing(found: Mapping[str, Any]) -> str:
    """What the data does for the reading that the verdict stands for."""
    return "suggested" if found["verdict"]["kind"] == _NOBODY_KNOWS else "best supported"


def _short(found: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """A reading in words; what it has in common with the best supported one is not told again."""
    named = found["verdict"]["reading"]
    more = [change for change in row["changes"] if change not in named]
    if not named or not more or len(more) + len(named) != len(row["changes"]):
        return row["reading"]
    told = "; ".join(f"{change['axis']}: {change['choice']}" for change in more)
    return f"the {_standing(found)} one, and {told}"


def _figure(value: float | int | None, form: str | None = None) -> str:
    """A number, or a dash where there is none."""
    if value is None:
        return "–"
    return told_number(value) if form is None else format(value, form)


def _percent(share: float | None) -> str:
    return _figure(share, ".1%")


def _written(value: Any) -> str:
    """A value as config.json writes it; a key that is not there has none."""
    return "(no such key)" if value is None else json.dumps(value, ensure_ascii=False)
