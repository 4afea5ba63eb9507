"""Every draft through every pair of dialects and back: the same files, or a refusal with a cause.

What a framework has a place for is written down here by hand, from the frameworks' own code, and
not taken from the dialects: a part that is refused without need fails a test, as does one that is
accepted and lost.
"""

import sys
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from converters.comparison import same_bytes
from converters.conversion import fit
from converters.description import differences
from converters.dialects import DIALECTS, dialect_of
from converters.drafts import LoadedDraft, OpenDraft, in_memory, open_draft
from converters.targets import open_target
from converters.trees import to_tensors
from converters.writing import write_draft
from eagle3_jax.cli.drafts import write_native
from eagle3_jax.config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    YarnScaling,
)
from eagle3_jax.errors import InputError
from eagle3_jax.vocab import VocabMap
from tests.conftest import latent_heads
from tests.samples import BOUNDARIES, write_target
from tests.test_drafts import IDS, MAX_POSITIONS, V, attention, draft_of


def _only(names: str) -> frozenset[str]:
    return frozenset(names.split())


ALL = _only(
    "eagle specforge specforge-0.2 angelslim specjax sglang sglang-jax vllm tpu-inference "
    "tensorrt-llm speculators speculators-converted modelopt modelopt-2025 automodel torchspec "
    "native"
)
_VLLMS = _only("vllm speculators native")
_BIASED = _VLLMS | _only("speculators-converted modelopt modelopt-2025 automodel tensorrt-llm")
_WIDE = _VLLMS | _only("sglang tensorrt-llm automodel")
_SCALED = ALL - _only("eagle angelslim specjax sglang-jax tpu-inference")

# What a draft may need: (what a refusal calls it, who has a place for it).
PLACES: dict[str, tuple[str, frozenset[str]]] = {
    "single norm": ("normed once", ALL - {"modelopt"}),
    "double norm": ("double_norm", _only("modelopt native")),
    "norm_before_residual": (
        "norm_before_residual",
        _VLLMS | {"speculators-converted", "tpu-inference"},
    ),
    "norm_before_fc": ("norm_before_fc", _VLLMS | {"sglang", "tensorrt-llm"}),
    "fc_norm": ("fc_norm", _WIDE | _only("specforge specforge-0.2 torchspec")),
    "norm_output": ("norm_output", _WIDE | _only("specforge torchspec speculators-converted")),
    "no final norm": ("a missing final norm", _only("specforge-0.2 native")),
    "fc bias": ("fc_bias", _only("sglang tensorrt-llm native")),
    "q/k/v biases": ("q/k/v biases", _BIASED),
    "output bias": ("a bias of o_proj", _BIASED | {"sglang"}),
    "mlp_bias": ("mlp_bias", _BIASED),
    "q/k norms": ("q/k norms", _VLLMS),
    "output bias beside q/k norms": ("a bias of o_proj beside q/k norms", _VLLMS - {"vllm"}),
    "mlp_bias beside q/k norms": ("MLP biases beside q/k norms", _only("native")),
    "layers": (
        "more than one layer",
        _VLLMS | _only("sglang modelopt modelopt-2025 tensorrt-llm"),
    ),
    "other than three states": (
        "other than three aux states",
        _WIDE | _only("modelopt modelopt-2025 torchspec"),
    ),
    "square fc": (
        "as many columns as it has rows",
        ALL - _only("eagle sglang sglang-jax tensorrt-llm"),
    ),
    "no fc": (
        "a draft without fc",
        _only("sglang vllm tensorrt-llm modelopt modelopt-2025 native"),
    ),
    "stated capture": (
        "states no layer ids",
        ALL - _only("eagle angelslim specjax sglang-jax tpu-inference automodel"),
    ),
    "states without ids": (
        "counts aux states by layer ids",
        ALL - _only("speculators modelopt modelopt-2025"),
    ),
    "latent states without ids": ("counts aux states by layer ids", ALL - {"sglang", "modelopt"}),
    "window": ("a sliding window", _VLLMS),
    "own head_dim": ("a head_dim other than hidden_size / heads", ALL - {"eagle"}),
    "target's width": (
        "width",
        ALL - _only("modelopt modelopt-2025 angelslim specjax speculators"),
    ),
    "own embeddings": (
        "token embeddings",
        ALL - _only("modelopt modelopt-2025 specjax sglang-jax"),
    ),
    "no embeddings": ("random ones", ALL - {"speculators", "automodel"}),
    "tied head": ("lm_head", _only("sglang sglang-jax native")),
    "target's head": ("lm_head", _only("sglang sglang-jax vllm tensorrt-llm native")),
    "order of a whole vocabulary": (
        "order",
        _only("specforge specforge-0.2 sglang sglang-jax tpu-inference native"),
    ),
    "order of ids": ("order", ALL - {"specjax"}),
    "partial rotary": (
        "a partial rotary factor",
        _only("sglang vllm speculators speculators-converted automodel tensorrt-llm native"),
    ),
    "linear": ("linear RoPE scaling", _SCALED),
    "dynamic": (
        "dynamic RoPE scaling",
        _SCALED - _only("sglang specforge specforge-0.2 torchspec"),
    ),
    "llama3": ("llama3 RoPE scaling", _SCALED | {"tpu-inference"}),
    "yarn": ("yarn RoPE scaling", _SCALED),
    "attention_factor of YaRN": (
        "YaRN's attention_factor",
        _SCALED - _only("sglang tensorrt-llm specforge specforge-0.2"),
    ),
    "longrope": (
        "longrope RoPE scaling",
        _SCALED - _only("specforge specforge-0.2 torchspec"),
    ),
    "attention_factor of LongRoPE": (
        "LongRoPE's attention_factor",
        _SCALED - _only("sglang tensorrt-llm"),
    ),
    "latent attention": (
        "multi-head latent attention",
        _only("sglang vllm modelopt torchspec automodel native"),
    ),
    "latent queries without a rank": ("latent attention without q_lora_rank", ALL - {"sglang"}),
    "latent scaling": ("RoPE scaling under latent attention", ALL - {"automodel"}),
    "latent norm_before_fc": ("norm_before_fc", _only("native")),
    "latent layers": (
        "more than one layer",
        _only("vllm modelopt native"),
    ),
}


class Case(NamedTuple):
    """A draft, what it needs of a dialect, and what it is converted beside.

    Attributes:
        needs: names of `PLACES`.
        changes: of the plain draft.
        target: its target is at hand, whose embeddings it may leave to the target.
        zeros: its biases are half of what some framework's one flag means.
        ids: the draft vocabulary where it is another.
    """

    needs: str
    changes: Mapping[str, Any] = {}
    target: bool = True
    zeros: bool = False
    ids: np.ndarray | None = None


def rope(scaling=None, **changes):
    return RopeConfig(scaling=scaling, **changes)


SMALL = attention(head_dim=2)  # 4 heads of 2 in a width of 8
BIASES = attention(head_dim=2, bias=True, output_bias=True)
WIDE_HEADS = attention(num_heads=2, num_kv_heads=1)  # room for partial rotation in a width of 8
YARN = YarnScaling(4.0, 16)
FULL_YARN = YarnScaling(4.0, 16, 16.0, 2.0, 1.0, 0.5)
LONGROPE = LongRopeScaling((1.0,), (4.0,), 16, 4.0)
LATENT = {"attention": latent_heads()}
DIRECT = {"attention": latent_heads(q_lora_rank=None)}
FOUR = {"num_aux": 4, "boundaries": (0, 2, 4, 8)}
TWO = {"num_aux": 2, "boundaries": (3, 6)}
OWN = {"embeddings": True}
CASES = {
    "plain": Case(""),
    "bfloat16": Case("", {"dtype": ml_dtypes.bfloat16}),
    "norm_before_residual": Case("norm_before_residual", {"norm_before_residual": True}),
    "norm_before_fc": Case("norm_before_fc", {"norm_before_fc": True}),
    "fc_norm": Case("fc_norm", {"fc_norm": True}),
    "norm_output": Case("norm_output", {"norm_output": True}),
    "EAGLE-3.1": Case("fc_norm, norm_output", {"fc_norm": True, "norm_output": True}),
    "no final norm": Case("no final norm", {"final_norm": False}),
    "fc_norm, no final norm": Case(
        "fc_norm, no final norm", {"fc_norm": True, "final_norm": False}
    ),
    "fc bias": Case("fc bias", {"fc_bias": True}, zeros=True),
    "fc and output bias": Case(
        "fc bias, output bias",
        {"fc_bias": True, "attention": attention(head_dim=2, output_bias=True)},
        zeros=True,
    ),
    "q/k/v biases": Case(
        "q/k/v biases", {"attention": attention(head_dim=2, bias=True)}, zeros=True
    ),
    "output bias": Case(
        "output bias", {"attention": attention(head_dim=2, output_bias=True)}, zeros=True
    ),
    "attention biases": Case("q/k/v biases, output bias", {"attention": BIASES}),
    "all biases": Case(
        "q/k/v biases, output bias, mlp_bias, fc bias",
        {"attention": BIASES, "mlp_bias": True, "fc_bias": True},
    ),
    "mlp_bias": Case("mlp_bias", {"mlp_bias": True}),
    "q/k norms": Case("q/k norms", {"attention": attention(head_dim=2, qk_norm=True)}),
    "q/k norms, q/k/v biases": Case(
        "q/k norms, q/k/v biases",
        {"attention": attention(head_dim=2, qk_norm=True, bias=True)},
        zeros=True,
    ),
    "q/k norms, attention biases": Case(
        "q/k norms, q/k/v biases, output bias, output bias beside q/k norms",
        {"attention": attention(head_dim=2, qk_norm=True, bias=True, output_bias=True)},
    ),
    "q/k norms, mlp_bias": Case(
        "q/k norms, mlp_bias, mlp_bias beside q/k norms",
        {"attention": attention(head_dim=2, qk_norm=True), "mlp_bias": True},
    ),
    "two layers": Case("layers", {"num_layers": 2}),
    "two layers, q/k norms": Case(
        "layers, q/k norms",
        {"num_layers": 2, "attention": attention(head_dim=2, qk_norm=True)},
    ),
    "two layers, biases": Case(
        "layers, q/k/v biases, output bias, mlp_bias",
        {"num_layers": 2, "attention": BIASES, "mlp_bias": True},
    ),
    "one state": Case(
        "other than three states, square fc, stated capture", {"num_aux": 1, "boundaries": (8,)}
    ),
    "two states": Case("other than three states, stated capture", TWO),
    "four states": Case("other than three states, stated capture", FOUR),
    "four states, fc_norm": Case(
        "other than three states, stated capture, fc_norm", {**FOUR, "fc_norm": True}
    ),
    "four states, norm_before_fc": Case(
        "other than three states, stated capture, norm_before_fc",
        {**FOUR, "norm_before_fc": True},
    ),
    "an unusual capture": Case("stated capture", {"boundaries": (1, 4, 8)}),
    "an unknown capture": Case("", {"boundaries": None}),
    "two states, unknown": Case(
        "other than three states, states without ids", {"num_aux": 2, "boundaries": None}
    ),
    "last state alone": Case("no fc", {"num_aux": 0}),
    "window": Case("window", {"attention": attention(head_dim=2, sliding_window=5)}),
    "window, two layers": Case(
        "window, layers",
        {"num_layers": 2, "attention": attention(head_dim=2, sliding_window=5)},
    ),
    "own head_dim": Case("own head_dim", {"attention": attention()}),
    "one kv head": Case("", {"attention": attention(head_dim=2, num_kv_heads=1)}),
    "eps": Case("", {"rms_norm_eps": 1e-6}),
    "wider target": Case(
        "target's width, own embeddings", {"target_hidden_size": 12, **OWN}, target=False
    ),
    "narrower target, square fc": Case(
        "target's width, own embeddings, other than three states, square fc",
        {"target_hidden_size": 4, **TWO, **OWN},
        target=False,
    ),
    "own embeddings": Case("own embeddings", OWN, target=False),
    "no embeddings": Case("no embeddings", target=False),
    "whole vocabulary": Case("", {"draft_vocab_size": V}),
    "whole vocabulary in an order": Case(
        "order of a whole vocabulary",
        {"draft_vocab_size": V},
        ids=np.roll(np.arange(V), 5),
    ),
    "ids in an order": Case("order of ids", ids=np.roll(IDS, 5)),
    "tied head": Case(
        "tied head, no embeddings", {"head": "tied", "draft_vocab_size": V}, target=False
    ),
    "target's head": Case(
        "target's head, no embeddings", {"head": "target", "draft_vocab_size": V}, target=False
    ),
    "target's head, last state alone": Case(
        "target's head, no fc, no embeddings",
        {"head": "target", "draft_vocab_size": V, "num_aux": 0},
        target=False,
    ),
    "theta": Case("", {"rope": rope(theta=5e5)}),
    "partial rotary": Case("partial rotary", {"attention": WIDE_HEADS, "rope": rope(partial=0.5)}),
    "linear": Case("linear", {"rope": rope(LinearScaling(2.0))}),
    "dynamic": Case("dynamic", {"rope": rope(DynamicScaling(2.0, MAX_POSITIONS))}),
    "llama3": Case("llama3", {"rope": rope(Llama3Scaling(8.0, 1.0, 4.0, 16), theta=5e5)}),
    "yarn": Case("yarn", {"rope": rope(YARN)}),
    "yarn with mscale": Case("yarn", {"rope": rope(FULL_YARN, theta=5e5)}),
    "yarn with its factor": Case(
        "yarn, attention_factor of YaRN",
        {"rope": rope(YarnScaling(4.0, 16, attention_factor=1.2))},
    ),
    "longrope": Case("longrope", {"rope": rope(LONGROPE)}),
    "longrope with its factor": Case(
        "longrope, attention_factor of LongRoPE",
        {"rope": rope(LongRopeScaling((1.0,), (4.0,), 16, 4.0, 1.1))},
    ),
    "latent": Case("latent attention", LATENT),
    "latent, EAGLE-3.1": Case(
        "latent attention, fc_norm, norm_output",
        {**LATENT, "fc_norm": True, "norm_output": True},
    ),
    "latent, norm_before_residual": Case(
        "latent attention, norm_before_residual", {**LATENT, "norm_before_residual": True}
    ),
    "latent, norm_before_fc": Case(
        "latent attention, norm_before_fc, latent norm_before_fc",
        {**LATENT, "norm_before_fc": True},
    ),
    "latent, yarn": Case(
        "latent attention, yarn, latent scaling", {**LATENT, "rope": rope(FULL_YARN)}
    ),
    "latent, direct queries": Case(
        "latent attention, latent queries without a rank",
        DIRECT,
    ),
    "latent, direct queries, yarn": Case(
        "latent attention, latent queries without a rank, yarn, latent scaling",
        {**DIRECT, "rope": rope(FULL_YARN)},
    ),
    "latent, two layers": Case(
        "latent attention, layers, latent layers", {**LATENT, "num_layers": 2}
    ),
    "latent, two states": Case(
        "latent attention, other than three states, stated capture", {**LATENT, **TWO}
    ),
    "latent, two states, unknown": Case(
        "latent attention, other than three states, latent states without ids",
        {**LATENT, "num_aux": 2, "boundaries": None},
    ),
    "everything of speculators": Case(
        "norm_before_residual, norm_before_fc, norm_output, q/k norms, window, layers, "
        "other than three states, stated capture, own head_dim, own embeddings",
        {
            "norm_before_residual": True,
            "norm_before_fc": True,
            "norm_output": True,
            "attention": attention(qk_norm=True, sliding_window=5),
            "num_layers": 2,
            **FOUR,
            **OWN,
        },
        target=False,
    ),
    "everything of TensorRT-LLM": Case(
        "fc_norm, norm_output, fc bias, q/k/v biases, output bias, mlp_bias, layers, "
        "other than three states, stated capture, own head_dim, llama3",
        {
            "fc_norm": True,
            "norm_output": True,
            "fc_bias": True,
            "attention": attention(bias=True, output_bias=True),
            "mlp_bias": True,
            "num_layers": 2,
            "rope": rope(Llama3Scaling(8.0, 1.0, 4.0, 16)),
            **FOUR,
        },
    ),
}
# What ModelOpt's trainer norms twice, nobody else does.
CASES |= {
    f"{name}, normed twice": case._replace(
        needs=f"{case.needs}, double norm", changes={**case.changes, "double_norm": True}
    )
    for name, case in CASES.items()
    if name
    in (
        "plain",
        "own head_dim",
        "attention biases",
        "two layers, biases",
        "four states",
        "whole vocabulary",
        "yarn",
        "latent",
        "latent, two layers",
    )
}


def lacking(name: str, dialect: str) -> list[str]:
    """What a dialect has no place for of a case, as a refusal calls it."""
    needs = [need for need in CASES[name].needs.split(", ") if need]
    needs += [] if "double norm" in needs else ["single norm"]
    return [PLACES[need][0] for need in needs if dialect not in PLACES[need][1]]


def source(name: str) -> OpenDraft:
    """A case's draft, in memory."""
    case = CASES[name]
    changes = {"attention": SMALL, "boundaries": BOUNDARIES[:3], **case.changes}
    if changes.get("num_aux") == 0:
        changes["boundaries"] = None
    draft: LoadedDraft = draft_of(**changes)
    vocab = draft.vocab if case.ids is None else VocabMap.from_ids(case.ids, V)
    tensors: Any = to_tensors(draft.params)
    if "dtype" in changes:  # norms of a wider type than the weights
        tensors |= {n: t.astype(np.float32) for n, t in tensors.items() if t.ndim == 1}
    return OpenDraft(
        draft.config,
        tensors,
        vocab,
        draft.embeddings,
        draft.boundaries,
        dialect_of("native"),
        max_positions=MAX_POSITIONS,
    )


# An Orbax checkpoint takes as long to write as thirty files: those that hold every part between
# them go there.
KEPT_NATIVE = (
    "plain",
    "no final norm",
    "an unknown capture",
    "q/k/v biases",
    "wider target",
    "whole vocabulary in an order",
    "target's head, last state alone",
    "latent, direct queries, yarn",
    "latent, EAGLE-3.1",
    "everything of speculators",
    "everything of TensorRT-LLM",
    "attention biases, normed twice",
)


class Workshop:
    """Takes drafts from dialect to dialect; what is alike to the byte is written once.

    Attributes:
        places: where each draft lies, by the dialect and all that is written of it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        write_target(directory / "target")
        config = directory / "target/config.json"
        layers = '"num_hidden_layers": '
        config.write_text(config.read_text().replace(f"{layers}1", f"{layers}8"))
        self.target = open_target(directory / "target")
        self.places: dict[tuple[str, bytes], Path] = {}
        self.opened = cache(lambda place: open_draft(place))
        self.first, self.moved = cache(self._first), cache(self._moved)
        self.outcomes = cache(self._outcomes)

    def write(self, draft: OpenDraft, name: str, dialect: str) -> Path:
        """A draft for a dialect, on disk."""
        assert draft.max_positions is not None
        fitted = fit(
            draft,
            dialect_of(dialect),
            where=dialect,
            max_positions=draft.max_positions,
            target=self.target if CASES[name].target else None,
        )
        key = dialect, fingerprint(fitted.draft)
        if key not in self.places:
            place = self.directory / f"{len(self.places)}"
            write = write_native if dialect == "native" else write_draft
            write(place, fitted, overwrite=False)
            self.places[key] = place
        return self.places[key]

    def _first(self, name: str, dialect: str) -> Path | str:
        """A case as a dialect has it, or why it has it not."""
        try:
            return self.write(source(name), name, dialect)
        except InputError as error:
            return str(error)

    def _moved(self, there: Path, name: str, dialect: str) -> Path | str:
        """A draft on disk as another dialect has it, or why it has it not."""
        try:
            return self.write(self.opened(there), name, dialect)
        except InputError as error:
            return str(error)

    def _outcomes(self, one: str, other: str) -> dict[str, str]:
        """Of each case: nothing where it comes back, else the refusal or what differs."""
        told = {}
        for name in KEPT_NATIVE if "native" in (one, other) else CASES:
            there = self.first(name, one)
            if isinstance(there, str):
                told[name] = there
                continue
            away = self.moved(there, name, other)
            if isinstance(away, str):
                told[name] = away
                continue
            back = self.moved(away, name, one)
            if isinstance(back, str):
                told[name] = f"no way back: {back}"
            else:
                same = back == there or self.alike(there, back, CASES[name])
                told[name] = "" if same else f"{there} came back as {back}"
        return told

    def alike(self, there: Path, back: Path, case: Case) -> bool:
        """Whether a draft came back with nothing new but what adds nothing.

        That is biases of zeros, where one flag means several, and the target's own embeddings,
        where someone between needs them in the file.
        """
        one, other = self.opened(there), self.opened(back)
        if case.zeros:
            added = {n: t for n, t in other.tensors.items() if n not in one.tensors}
            if any(not n.endswith(".bias") or np.any(in_memory(t)) for n, t in added.items()):
                return False
            kept = {n: t for n, t in other.tensors.items() if n in one.tensors}
            other = other._replace(tensors=kept, config=one.config)
        if case.target and one.embeddings is None and other.embeddings is not None:
            if not same_bytes(other.embeddings, self.target.embeddings):
                return False
            other = other._replace(embeddings=None)
        return differences(one, other) == []


def fingerprint(draft: OpenDraft) -> bytes:
    """All that is written of a draft, as a digest."""
    told = (draft.config, draft.boundaries, draft.max_positions, draft.target_name)
    digest = sha256(repr(told).encode())
    parts: dict[str, Any] = {**draft.tensors, "ids": draft.vocab.target_ids}
    if draft.embeddings is not None:
        parts["embed_tokens"] = draft.embeddings
    for name, tensor in sorted(parts.items()):
        array = in_memory(tensor)
        digest.update(repr((name, array.shape, array.dtype)).encode() + array.tobytes())
    return digest.digest()


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)  # half of the time, and no power fails here
        yield Workshop(tmp_path_factory.mktemp("round_trips"))


def test_the_table_here_names_every_dialect_and_every_need():
    assert {name for name, dialect in DIALECTS.items() if dialect.writable} == ALL
    needed = {need for case in CASES.values() for need in case.needs.split(", ") if need}
    assert needed | {"single norm"} == PLACES.keys()


@pytest.mark.parametrize("dialect", sorted(ALL))
def test_a_file_says_what_the_draft_is(workshop, dialect):
    for name in KEPT_NATIVE if dialect == "native" else CASES:
        place = workshop.first(name, dialect)
        if isinstance(place, str):
            continue
        draft, found = source(name), workshop.opened(place)
        if CASES[name].zeros:
            found = found._replace(
                tensors={n: t for n, t in found.tensors.items() if n in draft.tensors},
                config=draft.config,
            )
        assert differences(draft._replace(embeddings=found.embeddings), found) == [], name
        assert (found.dialect.name, found.max_positions) == (dialect, MAX_POSITIONS)


@pytest.mark.parametrize("other", sorted(ALL))
@pytest.mark.parametrize("one", sorted(ALL))
def test_there_and_back(workshop, one, other):
    wrong = {}
    for name, told in workshop.outcomes(one, other).items():
        lacks = lacking(name, one) or lacking(name, other)
        if told and not lacks:
            wrong[name] = told
        elif lacks and not any(lack in told for lack in lacks):
            wrong[name] = f"expected a refusal of {lacks[0]}, found {told or 'none'}"
    assert wrong == {}


def refusals(workshop: Workshop, dialect: str) -> dict[str, str]:
    """Why a dialect refuses drafts -> what of them, each said once."""
    told: dict[str, set[str]] = {}
    for case in CASES:
        message = workshop.first(case, dialect)
        if isinstance(message, Path):
            continue
        what = message.removeprefix(f"{dialect}: ").partition(" (--")[0]
        parts = what.removeprefix(f"{dialect} has no place for ")
        for part in parts.split("; ") if parts != what else []:
            feature, reason = part.split(": ")
            told.setdefault(reason, set()).add(feature)
        if parts == what:
            told.setdefault(what, set()).add(case)
    return {reason: "; ".join(sorted(parts)) for reason, parts in told.items()}


def test_the_table_of_pairs(workshop, capsys):
    """Says in the test output how many drafts come back of each pair, and why the others do not."""
    names = sorted(ALL)
    header = f"{len(CASES)} drafts (native: {len(KEPT_NATIVE)}) that go from a row's dialect to a"
    lines = [f"{header} column's and come back the same", ""]
    lines += [f"{'':26}" + "".join(f"{number:>4}" for number in range(1, len(names) + 1))]
    for number, one in enumerate(names, 1):
        told = [workshop.outcomes(one, other) for other in names]
        row = "".join(f"{sum(not why for why in outcome.values()):>4}" for outcome in told)
        lines.append(f"{number:>2} {one:23}{row}")
    lines += ["", "The others are refused, since one of the two has no place for them:"]
    for name in sorted(ALL - {"native"}):
        lines += [f"{name}: {why} ({parts})" for why, parts in refusals(workshop, name).items()]
    assert len(lines) > len(names)
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *lines, ""]))
