import io
import json
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

import eagle3_jax.report
from eagle3_jax.cli.reporting import require_report_directory, write_report
from eagle3_jax.diagnose.findings import Finding, as_json
from eagle3_jax.diagnose.serving import match
from eagle3_jax.diagnose.slots import examine_slots
from eagle3_jax.errors import InputError
from eagle3_jax.report import (
    Picture,
    draw_diagnosis,
    draw_lengths,
    draw_norms,
    draw_readings,
    render_diagnosis,
)
from eagle3_jax.report.diagnosis import nearest_reference, shown_readings
from eagle3_jax.report.pictures import Bar, Spread, png_of, told_number
from eagle3_jax.structs import Document

BLUE, ORANGE, PALE = (0x17, 0x45, 0x7A), (0xF0, 0xA2, 0x4E), (0xB9, 0xC7, 0xD8)
VOID = {"br", "img", "meta"}
MOVED = {"axis": "states", "choice": "slot 0 = boundary 2"}
DROPPED = {"axis": "tensors", "choice": "fc.weight dropped"}


def document(length: int = 12) -> Document:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 5, length).astype(np.int32)
    states = rng.normal(size=(length, 3, 8)).astype(np.float32)
    states[:, 1] *= 30
    return Document(ids, answer=np.ones(length, bool), states=states, embeddings=None)


def reading(
    changes: list[dict[str, str]], length: float, joint: tuple[float | None, ...] = (0.6, 0.4)
) -> dict[str, Any]:
    told = "; ".join(f"{change['axis']}: {change['choice']}" for change in changes)
    return {
        "reading": told or "as configured",
        "changes": changes,
        "accepted_per_round": length - 1,
        "tokens_per_round": length,
        "joint": list(joint),
        "documents": 9,
    }


def engine(name: str, **changes) -> dict[str, Any]:
    plain = {
        "engine": name,
        "version": "1.2",
        "boundaries": [2, 15, 27],
        "capture": "ids read as outputs",
        "tokens_per_round": 2.25,
        "not_scored": None,
        "refused": None,
        "differences": [],
        "dropped": {},
        "missing": [],
        "flags": ["--speculative-num-steps 3"],
        "rules": ["ids are outputs"],
    }
    return plain | changes


def faulty(**changes) -> dict[str, Any]:
    """A draft that is fed other states than it was trained on."""
    text = document()
    found = {
        "draft": "drafts/mine",
        "shards": ["shards/a.safetensors"],
        "layout": "specforge",
        "documents": 9,
        "bad": ["shards/a.safetensors: document 4 holds NaN"],
        "chance": 0.045,
        "configured": {"slots": [1], "boundaries": [15], "source": "config ids [14]"},
        "verdict": {
            "kind": "another reading",
            "told": "states: slot 0 = boundary 2 gets 1.50 draft tokens accepted per round",
            "reading": [MOVED],
            "ties": [],
            "difference": 0.75,
            "interval": [0.61, 0.88],
            "undecided": {"position base": ["1, as speculators counts"]},
        },
        "weights": as_json(
            (Finding("measured", "norm.weight is 1 everywhere", "the other 6 norms are not"),)
        ),
        "correction": {
            "boundaries": [2],
            "configs": [
                {
                    "framework": "sglang",
                    "keys": [
                        {"key": "eagle_config.layer_ids", "now": [14], "right": [1]},
                        {"key": "norm_output", "now": None, "right": True},
                    ],
                    "refused": None,
                },
                {"framework": "vllm", "keys": [], "refused": None},
                {"framework": "speculators", "keys": [], "refused": "it has no word for it"},
            ],
            "outside_the_config": ["head: fed twice"],
        },
        "readings": [
            reading([MOVED, DROPPED], 2.52),
            reading([MOVED], 2.5, (0.8, 0.7)),
            reading([], 1.25, (0.2, 0.05)),
        ],
        "compared": 47,
        "slots": as_json(examine_slots([text])),
        "engines": [
            engine("sglang"),
            engine("vllm", tokens_per_round=None, not_scored="no boundary 1 is stored"),
            engine("llama.cpp", tokens_per_round=None, refused="it knows no fc_norm"),
        ],
        "serving": [{"document": 3, **as_json(match(text, text))}],
        "notes": ["the target is taken for a llama"],
    }
    return found | changes


def healthy() -> dict[str, Any]:
    verdict = faulty()["verdict"] | {
        "kind": "wired as configured",
        "told": "no reading of 47 is better",
        "reading": [],
        "difference": 0.0,
        "interval": None,
    }
    rows = [reading([DROPPED], 2.52), reading([], 2.5)]
    return faulty(verdict=verdict, correction=None, readings=rows)


def unread() -> dict[str, Any]:
    """Nothing could be tried, and nothing is finite."""
    verdict = {
        "kind": "cannot tell",
        "told": "the shards store 2 states, expected 3",
        "reading": [],
        "ties": [],
        "difference": 0.0,
        "interval": None,
        "undecided": {},
    }
    text = document()
    text.states[:] = np.nan
    return faulty(
        verdict=verdict,
        correction=None,
        readings=[],
        compared=0,
        weights=[],
        slots=as_json(examine_slots([text])),
        configured={"slots": [0], "boundaries": None, "source": "nobody"},
        engines=[],
        serving=[],
        bad=[],
        notes=[],
    )


class Page(HTMLParser):
    """Tags, in order, and the words outside the style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.open: list[str] = []
        said: list[str] = []
        self.said = said
        self.feed(text)
        self.close()
        self.words = " ".join(" ".join(said).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if "style" not in self.open:
            self.said.append(data)
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)

    def attributes(self, wanted: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == wanted]


def page_of(found: dict[str, Any]) -> Page:
    """Without pictures, which take their time."""
    return Page(render_diagnosis(found, ()))


@cache
def pictures_of(make: Callable[[], dict[str, Any]]) -> dict[str, Picture]:
    return {picture.name: picture for picture in draw_diagnosis(make())}


def pixels(png: bytes, color: tuple[int, int, int]) -> np.ndarray:
    """Where a picture has a colour, `[rows, columns]` bool."""
    seen = np.rint(imread(io.BytesIO(png))[..., :3] * 255).astype(int)
    return np.abs(seen - color).max(-1) <= 1


def widest(png: bytes, color: tuple[int, int, int]) -> int:
    return int(pixels(png, color).sum(1).max())


def test_the_page_says_the_verdict_and_what_it_rests_on():
    page = page_of(faulty())
    assert not page.open, "every tag is closed"
    assert page.headings == [
        "What to change",
        "How the draft could be wired",
        "What the draft's tensors tell",
        "What the stored states are",
        "What the server captured",
        "How each engine would read it",
        "What was read",
        "What makes no difference here",
        "Notes",
    ]
    head = "another reading states: slot 0 = boundary 2 gets 1.50 draft tokens accepted per round ."
    assert head.replace(" .", ".") in page.words
    for told in (
        "tokens per round, as configured 1.25",
        "as the best supported reading has it 2.50",
        "difference, with its 95% interval +0.75 +0.61 to +0.88",
        "sglang eagle_config.layer_ids [14] [1]",
        "norm_output (no such key) true",
        "Nothing changes in the config.json of vllm:",
        "speculators cannot say it: it has no word for it",
        "head: fed twice",
        "measured norm.weight is 1 everywhere the other 6 norms are not",
        "Right capture: target boundaries 2 .",
        "the best supported one, and tensors: fc.weight dropped 2.52 60.0% 40.0% 9",
        "states: slot 0 = boundary 2 2.50 80.0% 70.0% 9",
        "as configured 1.25 20.0% 5.0% 9",
        "Document 3: the same states as in training",
        "12 of 12 0 1.00",
        "sglang 1.2 2, 15, 27 2.25 nothing: as trained",
        "Not scored: no boundary 1 is stored",
        "refused it knows no fc_norm",
        "--speculative-num-steps 3 capture: ids read as outputs ids are outputs",
        "boundaries 15, slots 1; by config ids [14]",
        "left out shards/a.safetensors: document 4 holds NaN",
        "position base 1, as speculators counts",
        "the target is taken for a llama",
    ):
        assert told in page.words, told


def test_every_finding_has_a_badge():
    found = faulty()
    findings = found["slots"]["findings"] + found["serving"][0]["findings"]
    assert {finding["strength"] for finding in findings} >= {"suggested", "proved"}
    page = page_of(found)
    for finding in findings:
        told = f"{finding['strength']} {finding['claim']} {finding['evidence']}"
        assert " ".join(told.split()) in page.words, told


def test_a_healthy_draft_has_nothing_to_change():
    page = page_of(healthy())
    assert "What to change" not in page.headings
    assert "tokens per round, as configured 2.50" in page.words
    assert "first tokens right 60.0% chance 4.5%" in page.words
    assert "95% interval" not in page.words
    assert [one["class"] for one in page.attributes("header")] == ["fine"]


@pytest.mark.parametrize(("found", "tone"), [(faulty, "fault"), (unread, "unknown")])
def test_the_verdict_has_its_tone(found, tone):
    assert [one["class"] for one in page_of(found()).attributes("header")] == [tone]


def test_ties_are_as_good():
    verdict = faulty()["verdict"] | {"kind": "several readings tie", "ties": [[DROPPED, MOVED]]}
    words = page_of(faulty(verdict=verdict)).words
    assert "As good: tensors : fc.weight dropped; states : slot 0 = boundary 2" in words


def test_what_was_not_found_is_left_out():
    page = page_of(unread())
    assert page.headings == [
        "How the draft could be wired",
        "What the stored states are",
        "What was read",
    ]
    assert "cannot tell the shards store 2 states, expected 3." in page.words
    assert "No reading could be tried; the verdict says why." in page.words
    assert "slots 0; by nobody" in page.words
    assert "slot 0 nothing to compare it with – – – 96" in page.words
    assert "None" not in page.words
    drawn = pictures_of(unread)
    assert set(drawn) == {"norms", "likeness"}
    assert "slot 0: –, position 0 –;" in drawn["norms"].alt
    assert "slot 0 and slot 1: –" in drawn["likeness"].alt


def test_a_suggested_reading_is_not_called_supported():
    verdict = faulty()["verdict"] | {"kind": "cannot tell", "interval": None}
    page = page_of(faulty(verdict=verdict, correction=None))
    assert "as the suggested reading has it 2.50" in page.words
    assert "the suggested one, and tensors: fc.weight dropped" in page.words
    assert "supported" not in page.words


def test_text_from_the_data_is_escaped():
    evil = '"><script>alert(1)</script>&'
    found = json.loads(
        json.dumps(faulty()).replace("shards/a.safetensors", evil.replace('"', r"\""))
    )
    for place, key in (
        (found, "draft"),
        (found["verdict"], "told"),
        (found["verdict"], "kind"),
        (found["correction"]["configs"][0]["keys"][0], "now"),
        (found["readings"][0]["changes"][1], "choice"),
        (found["slots"]["findings"][0], "evidence"),
        (found["slots"]["slots"][0], "name"),
        (found["engines"][0], "capture"),
        (found["engines"][0], "engine"),
        (found["serving"][0]["findings"][0], "strength"),
    ):
        place[key] = evil
    found["engines"][0]["flags"] = found["notes"] = [evil]
    found["readings"][0]["reading"] = evil
    page = Page(render_diagnosis(found, draw_diagnosis(found)))
    assert not page.attributes("script")
    assert not page.open
    assert page.words.count("<script>alert(1)</script>&") >= 12


def test_the_page_needs_nothing_beside_it():
    page = Page(render_diagnosis(faulty(), list(pictures_of(faulty).values())))
    loaded = {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "video"}
    assert not loaded
    pictures = page.attributes("img")
    assert [str(one["src"])[:27] for one in pictures] == ["data:image/png;base64,iVBOR"] * 4
    addresses = [value for _, attributes in page.tags for value in attributes.values() if value]
    assert not [value for value in addresses if "//" in value and not value.startswith("data:")]
    style = render_diagnosis(faulty(), ()).split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    for rule in ("prefers-color-scheme: dark", "@media print", "max-width: 36rem"):
        assert rule in style


def test_pictures_are_told_to_those_who_do_not_see_them():
    page = Page(render_diagnosis(faulty(), list(pictures_of(faulty).values())))
    told = [str(one["alt"]) for one in page.attributes("img")]
    assert told[0] == (
        "Bars of tokens per round. the best supported one, and tensors: fc.weight dropped: 2.52; "
        "states: slot 0 = boundary 2: 2.50; as configured: 1.25."
    )
    assert told[1] == (
        "Bars of joint accuracy at steps from 0. best supported: 80.0%, 70.0%; "
        "as configured: 20.0%, 5.0%."
    )
    norms = [slot["norms"] for slot in faulty()["slots"]["slots"]]
    slots = [
        f"slot {number}: {told_number(one['median'])}, position 0 {told_number(one['first'])}"
        for number, one in enumerate(norms)
    ]
    assert told[2] == f"Median norms of stored states, log scale. {'; '.join(slots)}."


def test_bars_are_as_long_as_the_figures():
    readings = pictures_of(faulty)["readings"].png
    best, plain, other = (widest(readings, color) for color in (BLUE, ORANGE, PALE))
    assert best > 800
    assert plain / best == pytest.approx(1.25 / 2.5, abs=0.01)
    assert other / best == pytest.approx(2.52 / 2.5, abs=0.005)


def test_the_configured_reading_is_blue_where_it_is_right():
    for name in ("readings", "joint"):
        png = pictures_of(healthy)[name].png
        assert pixels(png, BLUE).sum() > 1000, name
        assert not pixels(png, ORANGE).sum(), name


def test_joint_bars_are_as_high_as_the_shares():
    joint = pictures_of(faulty)["joint"].png
    columns = pixels(joint, BLUE).sum(0)
    highest = columns.max()  # step 0: 80%, step 1: 70%, and configured 20%
    assert (columns == highest).sum() > 50
    assert (np.abs(columns / highest - 0.7 / 0.8) < 0.01).sum() > 50
    configured = pixels(joint, ORANGE).sum(0).max()
    assert configured / highest == pytest.approx(0.2 / 0.8, abs=0.01)


def test_a_step_without_columns_has_no_bar():
    rows = {"as configured": {"steps": [{"step": 0, "joint": 0.5}, {"step": 1, "joint": None}]}}
    rows["as configured"]["tokens_per_round"] = 1.5
    figure = draw_readings(rows, title="a", story="b")
    (bar,) = figure.axes[0].containers[0]
    assert bar.get_x() + bar.get_width() / 2 == pytest.approx(0), "alone, it stands on its step"
    empty = png_of(figure)
    # The legend is in this half, too: a patch of a few pixels.
    assert pixels(empty, BLUE)[200:, 600:].sum(1).max() < 60


def test_norms_stand_on_a_log_scale():
    def places(*medians: float) -> list[float]:
        slots = [Spread(f"slot {norm}", norm, None, None, None) for norm in medians]
        png = png_of(draw_norms(slots, title="a", story="b"))
        rows = np.flatnonzero(pixels(png, BLUE).any(1))
        groups = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)[1:]  # the legend apart
        return [float(np.flatnonzero(pixels(png, BLUE)[group].any(0)).mean()) for group in groups]

    first, second, third = places(1.0, 100.0, 1000.0)
    assert (second - first) / (third - second) == pytest.approx(2.0, rel=0.02)


def test_near_norms_have_ticks_around_them():
    slots = [Spread("slot 0", 22.0, 20.0, 24.0, 23.0)]
    axes = draw_norms(slots, title="a", story="b").axes[0]
    assert axes.get_xlim() == (10.0, 100.0)
    assert {10.0, 100.0} <= set(axes.get_xticks())


def test_numbers_are_written_as_people_do():
    numbers = (0.01234, 2.8021, 63.165, 149.27, 24832.4, -1234.0)
    told = ["0.0123", "2.8", "63.2", "149", "24,832", "-1,234"]
    assert [told_number(number) for number in numbers] == told


def test_a_long_reading_stays_inside_the_picture():
    told = "position advance: none, every step at the first one's position; " * 4
    figure = draw_lengths([Bar(told, 2.5, "best")], title="a", story="b")
    figure.canvas.draw()
    (label, *_) = figure.axes[0].texts
    assert label.get_window_extent().x1 < figure.bbox.x1
    assert label.get_window_extent().y1 < figure.axes[0].get_window_extent().y1 + 10


def test_norms_without_a_place_are_told():
    lacking = [Spread("slot 0", None, None, None, None), Spread("slot 1", 0.0, 0.0, 0.0, 0.0)]
    figure = draw_norms(lacking, title="a", story="b")
    told = [text.get_text() for text in figure.axes[0].texts]
    assert told == ["no finite norm past position 0", "the median norm is 0"]
    assert png_of(figure).startswith(b"\x89PNG")


def test_the_configured_reading_is_shown_however_bad():
    rows = [reading([MOVED, {"axis": "x", "choice": str(n)}], 3 - n / 100) for n in range(20)]
    rows += [reading([MOVED], 2.0), reading([], 1.1)]
    shown = shown_readings(faulty(readings=rows))
    assert shown == rows[:12] + rows[-2:]


def test_the_nearest_reference_is_equal_or_least_in_error():
    def like(equal, error, compared=9):
        return {"equal": equal, "error": error, "compared": compared}

    equal, near, far = like(9, 0.2), like(0, 0.1), like(0, 3.0)
    lost = [like(0, None), like(0, 0.0, compared=0)]
    assert nearest_reference({"boundaries": [near], "tables": [far, equal, *lost]}) is equal
    assert nearest_reference({"boundaries": [far], "tables": [near, *lost]}) is near
    assert nearest_reference({"boundaries": [], "tables": lost}) is None


def test_a_report_is_a_page_its_pictures_and_the_json(tmp_path):
    place = tmp_path / "report"
    write_report(place, faulty())
    names = [
        "diagnosis.json",
        "index.html",
        "joint.png",
        "likeness.png",
        "norms.png",
        "readings.png",
    ]
    assert sorted(path.name for path in place.iterdir()) == names
    assert json.loads((place / "diagnosis.json").read_text()) == faulty()
    sources = [one["src"] for one in Page((place / "index.html").read_text()).attributes("img")]
    for picture in pictures_of(faulty).values():
        assert (place / f"{picture.name}.png").read_bytes() == picture.png
        assert picture.uri in sources
        assert imread(io.BytesIO(picture.png)).std() > 0.1, f"{picture.name} shows something"


def test_a_later_report_takes_the_place_of_an_earlier_one(tmp_path):
    write_report(tmp_path, faulty())
    (tmp_path / "mine.txt").write_text("mine")
    write_report(tmp_path, unread())
    names = ["diagnosis.json", "index.html", "likeness.png", "mine.txt", "norms.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert "cannot tell" in (tmp_path / "index.html").read_text()


def test_a_path_that_is_no_text_is_spelled_out(tmp_path):
    write_report(tmp_path, unread() | {"draft": "drafts/\udcff"})
    assert r"drafts/\udcff" in (tmp_path / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("what", ["draw_diagnosis", "render_diagnosis"])
def test_nothing_is_written_when_drawing_fails(what, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no ink")

    monkeypatch.setattr(eagle3_jax.report, what, fail)
    with pytest.raises(RuntimeError, match="no ink"):
        write_report(tmp_path / "report", faulty())
    assert not list(tmp_path.iterdir())


def test_an_earlier_report_stays_whole_when_writing_fails(tmp_path, monkeypatch):
    write_report(tmp_path, unread())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write, written = Path.write_bytes, []

    def run_full(path, content):
        written.append(path)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", run_full)
    with pytest.raises(OSError, match="No space left"):
        write_report(tmp_path, faulty())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_report_has_to_be_a_directory(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    told = f"{taken}: found a file, expected a directory for the report"
    for refuse in (require_report_directory, lambda path: write_report(path, faulty())):
        with pytest.raises(InputError) as raised:
            refuse(taken)
        assert str(raised.value) == told
    assert taken.read_text() == "mine"


def test_a_report_is_made_in_a_directory_that_exists(tmp_path):
    with pytest.raises(InputError) as raised:
        require_report_directory(tmp_path / "none" / "report")
    told = f"{tmp_path / 'none'}: no such directory, expected one to make report in"
    assert str(raised.value) == told
    for fine in (None, tmp_path, tmp_path / "report"):
        require_report_directory(fine)
    assert not list(tmp_path.iterdir())
