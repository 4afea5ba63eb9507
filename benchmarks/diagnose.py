"""Does `diagnose` name a fault that was planted, and keep quiet where there is none?

    python -m benchmarks.diagnose                            all of it, and the page `diagnose.md`
    python -m benchmarks.diagnose --only small-a --json A    one draft
    python -m benchmarks.diagnose --of A B ...               the page, from such parts

The drafts: the shipped one with its shards, and small ones with other knobs, trained once and kept
in the cache. `diagnose_table` says what each outcome means.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from benchmarks.diagnose_table import print_tables, render
from benchmarks.faults import faults_of
from benchmarks.judging import DOCUMENTS, Outcome, outcome_of
from benchmarks.planted import Subject, pairs_of
from benchmarks.small_drafts import (
    RECIPES,
    SLOTS,
    STORED,
    Recipe,
    make_documents,
    make_world,
    trained,
)
from converters.drafts import LoadedDraft, load_draft
from converters.shards import open_shards, read_documents
from converters.writing import save_draft
from eagle3_jax.cli.compiled import keep_compiled
from eagle3_jax.cli.demo import SHIPPED
from eagle3_jax.diagnose.readings import Known, configured
from eagle3_jax.errors import InputError
from eagle3_jax.heads import TargetHead
from eagle3_jax.structs import Document

PAIRS = {"small-a": 30, "small-b": 30, "small-c": 15, "shipped": 8}
PAGE = Path(__file__).with_suffix(".md")
DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
DIALECTS = ("sglang", "specforge", "vllm", "speculators", "modelopt", "torchspec")


def small_subject(recipe: Recipe, seed: int = 5, draft: LoadedDraft | None = None) -> Subject:
    """A small draft and fresh texts of its world."""
    world = make_world(recipe.seed)
    documents = [
        text._replace(embeddings=world.table[text.ids])
        for text in make_documents(world, DOCUMENTS, seed)
    ]
    head = TargetHead(jnp.asarray(world.head), jnp.asarray(world.norm), 1e-5)
    known = Known(None, jnp.asarray(world.head))
    places = (*(f"slot {i} = boundary {b}" for i, b in enumerate(STORED)), "the embedding")
    subject = _subject(recipe.name, draft or trained(recipe), documents, places, SLOTS, head, known)
    changes = {name: jnp.int32(value) for name, value in recipe.wiring}
    return subject.truly(unit=jnp.asarray(recipe.unit), **changes)


def shipped_subject(draft: LoadedDraft | None = None) -> Subject:
    """The shipped draft and its shards."""
    shards = open_shards([SHIPPED / "shards"])
    documents = [text for file in shards.files for text in read_documents(file)][::2]
    stored = shards.info.boundaries
    draft = draft or load_draft(SHIPPED / "draft")
    assert stored is not None, "the package says it"
    assert draft.boundaries is not None, "the package says it"
    slots = tuple(stored.index(boundary) for boundary in draft.boundaries)
    places = (*(f"slot {i} = boundary {b}" for i, b in enumerate(stored)), "the embedding")
    return _subject("shipped", draft, documents, places, slots, None, Known())


def _subject(
    name: str,
    draft: LoadedDraft,
    documents: list[Document],
    places: tuple[str, ...],
    slots: tuple[int, ...],
    head: TargetHead | None,
    known: Known,
) -> Subject:
    config = draft.config
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), draft.params)
    kernel, ids = params["lm_head"]["kernel"], np.asarray(draft.vocab.target_ids)
    truth = configured(config, params, kernel, ids, None, slots)
    return Subject(
        name,
        config,
        params,
        kernel,
        ids,
        slots,
        documents,
        places,
        None,
        head,
        known,
        truth,
        config.rope,
    )


class Planned(NamedTuple):
    """One case.

    Attributes:
        family: row of the table.
        name: of the fault, or of what differs in a healthy case.
        make: the subject with it.
        known: as in `Fault`.
    """

    family: str
    name: str
    make: Callable[[], Subject]
    known: bool = True


def healthy_of(
    subject: Subject, draft: LoadedDraft, fresh: Callable[[int], Subject], seeds: int
) -> Iterator[Planned]:
    """The same draft on other texts, in other types, from other files."""
    texts = subject.documents
    half = len(texts) // 2
    for seed in range(seeds):
        yield Planned("healthy", f"texts of seed {seed}", lambda n=seed: fresh(n))
    for name, part in (("first", texts[:half]), ("second", texts[half:])):
        yield Planned("healthy", f"the {name} half", lambda p=part: subject._replace(documents=p))
    for name, dtype in DTYPES.items():
        stored = [text._replace(states=text.states.astype(dtype)) for text in texts]
        yield Planned(
            "healthy", f"states in {name}", lambda s=stored: subject._replace(documents=s)
        )
        yield Planned("healthy", f"weights in {name}", lambda n=name: _rounded(subject, n))
    for name in DIALECTS:
        yield Planned(
            "healthy", f"written for {name}", lambda n=name: _rewritten(subject, draft, n)
        )


def _rounded(subject: Subject, dtype: str) -> Subject:
    params = jax.tree.map(lambda leaf: leaf.astype(dtype).astype(jnp.float32), subject.params)
    return subject._replace(params=params, kernel=params["lm_head"]["kernel"])


def _rewritten(subject: Subject, draft: LoadedDraft, dialect: str) -> Subject:
    """The draft after a way through another framework's files."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "draft"
        save_draft(place, draft, max_positions=4096, dialect=dialect)
        read = load_draft(place)
    assert read.boundaries in (draft.boundaries, None), f"{dialect} keeps the capture"
    return _subject(
        subject.name,
        read,
        subject.documents,
        subject.places,
        subject.slots,
        subject.head,
        subject.known,
    )


def cases_of(name: str) -> list[Planned]:
    """All cases of a draft, healthy ones last."""
    if name == "shipped":
        draft = load_draft(SHIPPED / "draft")
        subject, seeds = shipped_subject(draft), 2
        every = subject.documents

        def fresh(seed: int) -> Subject:
            order = np.random.default_rng(seed).permutation(len(every))
            return subject._replace(documents=[every[i] for i in order])
    else:
        recipe = next(one for one in RECIPES if one.name == name)
        draft = trained(recipe)
        subject, seeds = small_subject(recipe, draft=draft), 12

        def fresh(seed: int) -> Subject:
            return small_subject(recipe, 100 + seed, draft)

    faults = faults_of(subject)
    found = [
        Planned(fault.family, fault.name, lambda f=fault: f.plant(subject), fault.known)
        for fault in (*faults, *pairs_of(faults, PAIRS[name], 0))
    ]
    if name != "shipped" and recipe.wiring:
        # Wired as no config says: it has faults before one is planted, and is never healthy.
        alone = Planned("as trained", "alone", lambda: subject)
        # A claim is then right in part even where a fault beside it can not be undone.
        more = [
            one._replace(family="as trained", name=f"{one.family}: {one.name}")
            for one in found
            if one.known
        ]
        return [alone, *more]
    return [*found, *healthy_of(subject, draft, fresh, seeds)]


def run(draft: str, like: str) -> Iterator[Outcome]:
    """Plant and diagnose, a case after the other; progress on stderr.

    Args:
        draft: its name.
        like: a pattern that is in the names of the cases to run.
    """
    for planned in cases_of(draft):
        told_name = f"{planned.family}: {planned.name}"
        if not re.search(like, told_name):
            continue
        try:
            subject = planned.make()
        except InputError as error:  # a dialect that has no place for the draft's knobs
            print(f"{draft}: {told_name}: not possible: {error}", file=sys.stderr)
            continue
        one = outcome_of(subject, planned.family, planned.name, planned.known)
        figures = " ".join(f"{x:.3f}" for x in one.accepted)
        print(
            f"{draft}: {one.family}: {one.name}: {one.outcome} [{one.verdict}: {one.reading}] "
            f"{figures} {one.compared} readings {one.seconds:.1f} s ({one.cpu_seconds:.1f} s of "
            "cores)"
            + (f" ties {one.ties}" if one.outcome in ("tie", "missed") else "")
            + (f" undecided {one.undecided}" if one.outcome in ("tie", "missed") else ""),
            file=sys.stderr,
            flush=True,
        )
        yield one


def main() -> int:
    """Plant, diagnose, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [*(recipe.name for recipe in RECIPES), "shipped"]
    parser.add_argument("--only", choices=names, help="one draft")
    parser.add_argument("--like", default="", metavar="REGEX", help="cases whose names it is in")
    parser.add_argument("--json", type=Path, help="write the outcomes, after each case")
    parser.add_argument("--of", type=Path, nargs="+", help="outcomes of earlier runs")
    options = parser.parse_args()
    keep_compiled()
    cases = [case for path in options.of or () for case in json.loads(path.read_text())]
    if not options.of:
        with jax.default_matmul_precision("highest"):
            for draft in [options.only] if options.only else names:
                for one in run(draft, options.like):
                    cases.append(one._asdict())
                    if options.json is not None:
                        options.json.write_text(json.dumps(cases, indent=2) + "\n")
    print_tables(cases)
    if options.of or not (options.only or options.like):
        PAGE.write_text(render(cases), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
