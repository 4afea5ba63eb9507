"""Files across the border: theirs opened by us, ours opened by their own loaders.

Their files become our config, tensors and numbers; drafts that we write become, in their hands, the
same knobs and the same numbers, with no tensor missing and none left over.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from converters.conversion import Fitted, fit
from converters.description import differences
from converters.dialects import dialect_of
from converters.drafts import LoadedDraft, Reading, in_memory, open_draft, read_whole
from converters.files import read_json
from converters.ropes import read_rope
from converters.targets import open_target
from converters.trees import to_tensors
from converters.writing import write_draft
from eagle3_jax.config import DraftConfig, YarnScaling
from eagle3_jax.errors import InputError
from tests.samples import write_target
from tests.witness.cases import MODELOPT, SGLANG, SPECFORGE, SPECULATORS, STEPS
from tests.witness.drawing import Tensors
from tests.witness.frameworks import (
    Run,
    Steps,
    describe,
    describe_specforge,
    differ,
    forward,
    only_when_asked,
    run_script,
    take_steps,
    tolerance,
)

pytestmark = pytest.mark.witness

BFLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
ROUNDED = 0.1  # how far weights of 8 bits may move a number of order 1
# What each way of SpecForge to write a draft keeps: type of the weights, type of the embeddings.
EXPORTS = {
    "checkpoint": (FLOAT32, FLOAT32),
    "sglang": (BFLOAT16, None),
    "hf": (FLOAT32, BFLOAT16),
}


def reading_of(framework: str, run: Run) -> Reading | None:
    """What a user has to add where a framework's files do not say how they are meant.

    SpecForge's `norm_output` changed its meaning after 0.2.0, and nothing in a file tells which of
    the two was meant. ModelOpt exports a YaRN that its training did not have.
    """
    if framework == "specforge" and run.knobs["norm_output"] is not None:
        return Reading(dialect="specforge-0.2")
    if framework == "modelopt" and run.knobs["export_rope_scaling"] is None:
        return Reading(settings={"rope_scaling": None})
    return None


def config_of(framework: str, run: Run) -> DraftConfig:
    """A run's draft as its framework reads the knobs."""
    if framework == "specforge":
        return describe_specforge(run)
    return describe(run, double_norm=framework == "modelopt")


def boundaries_of(framework: str, run: Run) -> tuple[int, ...] | None:
    """What a run's draft reads, as its config states it."""
    if framework == "speculators":
        return tuple(range(1, run.knobs["num_aux"] + 1))
    ids = run.knobs.get("aux_layer_ids")
    return None if ids is None else tuple(layer_id + 1 for layer_id in ids)


def require_tensors(
    draft: LoadedDraft, run: Run, weights: np.dtype[Any], embeddings: np.dtype[Any] | None
) -> None:
    """Fail unless a draft holds a run's weights, byte for byte as the type rounds them."""
    expected = {
        name: tensor.astype(weights)
        for name, tensor in run.weights.items()
        if name not in ("d2t", "t2d", "embed_tokens.weight")
        and (name != "norm.weight" or draft.config.final_norm)
    }
    found = to_tensors(draft.params)
    if draft.embeddings is not None:
        found["embed_tokens.weight"] = draft.embeddings
    if embeddings is not None:
        name = "embed_tokens.weight"
        expected[name] = run.weights[name].astype(embeddings)
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == {
        name: (t.dtype, t.shape) for name, t in expected.items()
    }
    for name, tensor in expected.items():
        assert np.ascontiguousarray(found[name]).tobytes() == tensor.tobytes(), name


def require_vocabulary(ids: np.ndarray, run: Run) -> None:
    """Fail unless target ids are the run's."""
    whole = np.arange(run.knobs["vocab_size"])
    np.testing.assert_array_equal(ids, whole[run.weights["t2d"]] if "t2d" in run.weights else whole)


def steps_of(draft: LoadedDraft, run: Run) -> Steps:
    """Our forward of a draft from disk; the target's embeddings are the run's."""
    table = draft.embeddings
    if table is None or table.dtype != FLOAT32:
        table = run.weights["embed_tokens.weight"]
    return take_steps(draft.config, draft.params, table, run.inputs)


class TestTheirsForUs:
    """Files that a framework wrote."""

    @pytest.mark.parametrize("name", SPECULATORS)
    def test_speculators(self, name, speculators_runs):
        run = speculators_runs[name]
        opened = open_draft(run.file("checkpoint"))
        assert opened.dialect.name == "speculators"
        assert opened.config == config_of("speculators", run)
        assert opened.boundaries == boundaries_of("speculators", run)
        assert opened.max_positions == run.knobs["max_position_embeddings"]
        draft = read_whole(opened)
        require_tensors(draft, run, FLOAT32, FLOAT32)
        require_vocabulary(draft.vocab.target_ids, run)
        apart = differ(steps_of(draft, run), run.outputs)
        assert apart < tolerance(run)

    @pytest.mark.parametrize("kind", EXPORTS)
    @pytest.mark.parametrize("name", SPECFORGE)
    def test_specforge(self, name, kind, specforge_runs):
        run = specforge_runs[name]
        weights, embeddings = EXPORTS[kind]
        reading = reading_of("specforge", run)
        if reading is not None:
            with pytest.raises(InputError, match="its meaning changed"):
                open_draft(run.file(kind))
        opened = open_draft(run.file(kind), reading)
        assert opened.dialect.name == ("specforge" if reading is None else "specforge-0.2")
        assert opened.config == config_of("specforge", run)
        assert opened.boundaries == boundaries_of("specforge", run)
        assert opened.max_positions == run.knobs["max_position_embeddings"]
        draft = read_whole(opened)
        require_tensors(draft, run, weights, embeddings)
        require_vocabulary(draft.vocab.target_ids, run)
        if kind != "hf":  # its weights are the checkpoint's
            slack = tolerance(run) if weights == FLOAT32 else ROUNDED
            apart = differ(steps_of(draft, run), run.outputs)
            assert apart < slack

    @only_when_asked
    @pytest.mark.parametrize("name", MODELOPT)
    def test_modelopt(self, name, modelopt_runs):
        run = modelopt_runs[name]
        opened = open_draft(run.file("checkpoint"), reading_of("modelopt", run))
        assert opened.dialect.name == "modelopt"
        assert opened.config == config_of("modelopt", run)
        assert opened.boundaries == boundaries_of("modelopt", run)
        assert opened.max_positions == run.knobs["max_position_embeddings"]
        draft = read_whole(opened)
        weights = BFLOAT16 if run.knobs["dtype"] == "bfloat16" else FLOAT32
        require_tensors(draft, run, weights, None)
        require_vocabulary(draft.vocab.target_ids, run)
        slack = tolerance(run) if weights == FLOAT32 else ROUNDED
        apart = differ(steps_of(draft, run), run.outputs)
        assert apart < slack

    @only_when_asked
    def test_a_yarn_that_modelopt_adds_is_told(self, modelopt_runs):
        opened = open_draft(modelopt_runs["added_yarn"].file("checkpoint"))
        assert opened.config.rope.scaling == YarnScaling(32.0, 2048)
        assert any("rope_scaling is yarn with factor 32" in note for note in opened.notes)


class Journey(NamedTuple):
    """A draft that one framework wrote, written by us for another, which reads it.

    Attributes:
        source: who wrote it.
        name: the case.
        to: the dialect that we write.
        kind: which of its writer's files.
        allowed: losses that are accepted.
    """

    source: str
    name: str
    to: str
    kind: str = "checkpoint"
    allowed: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Also the name of its files."""
        return f"{self.source}.{self.name}.{self.kind}"


class Arrival(NamedTuple):
    """What the reader made of it.

    Attributes:
        run: the draft at its writer's.
        fitted: as we wrote it.
        report: missing and unexpected tensors, and the knobs that its reader has.
        outputs: of the reader, on the run's inputs.
    """

    run: Run
    fitted: Fitted
    report: dict[str, Any]
    outputs: Tensors


# What SpecForge's draft has a place for; no position lies past the row.
FOR_SPECFORGE = [
    *("plain", "fc_norm", "mha", "mqa", "head_dim=D_by_N", "whole_vocabulary", "large_eps"),
    *("theta", "linear", "llama3", "yarn"),
]
# What SGLang's draft has a place for of speculators' and ModelOpt's. It would tell one state of the
# draft's own width for one that is fused already.
NOT_FOR_SGLANG = ("residual", "bias", "qk_norm", "aux1", "dynamic", "longrope", "sdpa")
FOR_SGLANG = [name for name in SPECULATORS if not any(part in name for part in NOT_FOR_SGLANG)]
FROM_MODELOPT = [name for name in MODELOPT if not any(part in name for part in NOT_FOR_SGLANG)]
HEADED = [name for name in SPECFORGE if "no_final_norm" not in name]
NAMED = Journey(
    "specforge", "stated_capture", "speculators", "sglang"
)  # beside a target, by its name

TO_SPECULATORS = [
    *(Journey("speculators", name, "speculators") for name in SPECULATORS),
    *(Journey("specforge", name, "speculators") for name in HEADED if "wide" not in name),
]
TO_SPECFORGE = [
    *(Journey("specforge", name, "specforge-0.2") for name in SPECFORGE),
    *(Journey("speculators", name, "specforge-0.2") for name in FOR_SPECFORGE),
    Journey("specforge", "plain", "specforge-0.2", kind="sglang"),
]
TO_SGLANG = [
    *(Journey("specforge", name, "sglang") for name in HEADED),
    *(Journey("speculators", name, "sglang") for name in FOR_SGLANG),
    *(Journey("modelopt", name, "sglang", allowed=("double_norm",)) for name in FROM_MODELOPT),
    *(Journey("sglang", name, "sglang") for name in SGLANG),
    Journey("specforge", "plain", "sglang", kind="sglang"),
]


def pack(
    folder: Path, journey: Journey, run: Run, target: Path | None = None
) -> tuple[Fitted, dict[str, Any]]:
    """Write a draft for its reader, with inputs; the job's entry."""
    fitted = convert(run, journey, target)
    write_draft(folder / f"{journey}.draft", fitted)
    table = run.weights["embed_tokens.weight"]
    save_file(run.inputs | {"embed_tokens": table}, folder / f"{journey}.inputs.safetensors")
    return fitted, {"name": str(journey), "mode": "read", "steps": STEPS, "attention": "eager"}


def convert(run: Run, journey: Journey, target: Path | None = None) -> Fitted:
    """A run's file, opened by us and made fit for another dialect."""
    draft = open_draft(run.file(journey.kind), reading_of(journey.source, run))
    longest = draft.max_positions
    assert longest is not None
    if target is not None:
        draft = draft._replace(target_name=str(target))
    return fit(
        draft,
        dialect_of(journey.to),
        where=str(journey),
        max_positions=longest,
        allowed=journey.allowed,
        target=None if target is None else open_target(target),
    )


def unpack(folder: Path, journey: Journey, run: Run, fitted: Fitted) -> Arrival:
    """What the reader wrote down."""
    report = read_json(folder / f"{journey}.report.json")
    outputs = load_file(folder / f"{journey}.out.safetensors")
    return Arrival(run, fitted, report, outputs)


def travel(
    reader: str, journeys: list[Journey], runs: dict[str, dict[str, Run]], folder: Path
) -> dict[Journey, Arrival]:
    """Write every draft and have the reader load and run them all."""
    packed = {j: pack(folder, j, runs[j.source][j.name]) for j in journeys}
    run_script(reader, f"run_{reader}.py", folder, [entry for _, entry in packed.values()])
    return {
        j: unpack(folder, j, runs[j.source][j.name], fitted) for j, (fitted, _) in packed.items()
    }


def config_at_arrival(journey: Journey, run: Run) -> DraftConfig:
    """The draft that its reader has to have; SGLang's has no second norm."""
    lost = {"double_norm": False} if journey.allowed else {}
    return describe(run) if lost else config_of(journey.source, run)


def require_numbers(journey: Journey, arrival: Arrival) -> None:
    """Fail unless the reader's numbers are ours of the draft as it was drawn."""
    run = arrival.run
    bfloat16 = journey.kind == "sglang" or run.knobs.get("dtype") == "bfloat16"
    ours = forward(run, config_at_arrival(journey, run))
    apart = differ(ours, arrival.outputs)
    assert apart < (ROUNDED if bfloat16 else tolerance(run))


def require_knobs(journey: Journey, arrival: Arrival, names: str, **others: Any) -> None:
    """Fail unless the reader has the knobs that the writer was given.

    Args:
        journey: of the draft.
        arrival: holds what the reader reports.
        names: of knobs that the reader and the writer call alike.
        others: what the reader has to report of knobs that it calls or means otherwise.
    """
    knobs, told = arrival.run.knobs, arrival.report["config"]
    expected = {name: knobs[name] for name in names.split()}
    for flag in ("fc_norm", "norm_before_fc"):
        expected |= {flag: bool(knobs[flag])} if flag in told else {}
    assert {name: told[name] for name in expected | others} == expected | others
    stated = {"max_position_embeddings": told["max_position_embeddings"]}
    stated |= {name: told[name] for name in ("rope_parameters", "rope_theta") if name in told}
    assert read_rope(stated, str(journey)) == read_rope(knobs, str(journey))
    if "target_ids" in told:
        ids = told["target_ids"]
        ids = np.arange(knobs["vocab_size"]) if ids is None else np.asarray(ids)
        require_vocabulary(ids, arrival.run)


SHARED_KNOBS = """hidden_size num_heads num_kv_heads head_dim intermediate_size vocab_size
draft_vocab_size rms_norm_eps max_position_embeddings"""


class TestOursForSpeculators:
    """Drafts that speculators' own loader reads."""

    @pytest.mark.parametrize("journey", TO_SPECULATORS, ids=str)
    def test_reads_what_was_written(self, journey, at_speculators):
        arrival = at_speculators.arrivals[journey]
        knobs, boundaries = arrival.run.knobs, boundaries_of(journey.source, arrival.run)
        assert (arrival.report["missing"], arrival.report["unexpected"]) == ([], [])
        require_knobs(
            journey,
            arrival,
            SHARED_KNOBS + " model_type num_layers num_aux norm_before_residual attention_bias",
            norm_output=knobs["norm_output"] if journey.source == "speculators" else False,
            mlp_bias=knobs["mlp_bias"],
            aux_layer_ids=boundaries and list(boundaries),
            sliding_window=None,
            dtype="float32",
        )
        require_numbers(journey, arrival)

    def test_reads_what_names_its_target(self, at_speculators):
        """SpecForge's file has no embeddings: the target's are written."""
        arrival = at_speculators.arrivals[NAMED]
        assert (arrival.report["missing"], arrival.report["unexpected"]) == ([], [])
        assert arrival.report["config"]["dtype"] == "bfloat16"
        table = in_memory(open_target(at_speculators.target).embeddings).astype(BFLOAT16)
        draft = read_whole(arrival.fitted.draft)
        ours = take_steps(
            config_of("specforge", arrival.run), draft.params, table, arrival.run.inputs
        )
        apart = differ(ours, arrival.outputs)
        assert apart < tolerance(arrival.run)


class TestOursForSpecForge:
    """Drafts that SpecForge's warm start reads."""

    @pytest.mark.parametrize("journey", TO_SPECFORGE, ids=str)
    def test_reads_what_was_written(self, journey, at_specforge):
        arrival = at_specforge[journey]
        boundaries = boundaries_of(journey.source, arrival.run)
        embeddings = ["embed_tokens.weight"] if journey.kind == "sglang" else []
        assert (arrival.report["missing"], arrival.report["unexpected"]) == (embeddings, [])
        final_norm = config_of(journey.source, arrival.run).final_norm
        require_knobs(
            journey, arrival, SHARED_KNOBS + " target_hidden_size", norm_output=final_norm
        )
        stated = arrival.report["config"]["eagle_config"].get("eagle_aux_hidden_state_layer_ids")
        assert stated == (boundaries and [boundary - 1 for boundary in boundaries])
        require_numbers(journey, arrival)


@only_when_asked
class TestOursForSGLang:
    """Drafts that SGLang's loader reads."""

    @pytest.mark.parametrize("journey", TO_SGLANG, ids=str)
    def test_reads_what_was_written(self, journey, at_sglang):
        arrival = at_sglang[journey]
        knobs, boundaries = arrival.run.knobs, boundaries_of(journey.source, arrival.run)
        # A later layer has an input norm that its forward does not read.
        missing = [
            f"model.layers.{i}.input_layernorm.weight" for i in range(1, knobs["num_layers"])
        ]
        if journey.source == "modelopt" or journey.kind == "sglang":
            missing.append("model.embed_tokens.weight")
        assert sorted(arrival.report["missing"]) == sorted(missing)
        assert arrival.report["unexpected"] == ["t2d"]
        require_knobs(
            journey,
            arrival,
            SHARED_KNOBS + " target_hidden_size num_layers num_aux fc_bias attention_bias",
            norm_output=False if journey.source == "specforge" else knobs["norm_output"],
            output_bias=knobs["fc_bias"],
            head="own",
        )
        stated = arrival.report["config"]["eagle_config"].get("eagle_aux_hidden_state_layer_ids")
        assert stated == (boundaries and [boundary - 1 for boundary in boundaries])
        require_numbers(journey, arrival)


class AtSpeculators(NamedTuple):
    """What speculators read and converted.

    Attributes:
        arrivals: drafts that it read.
        target: what `NAMED` names, and whose embeddings it has.
        folder: of drafts that its converter wrote.
    """

    arrivals: dict[Journey, Arrival]
    target: Path
    folder: Path


# Drafts of SpecForge that speculators' own converter gets right, and of which of its files.
CONVERTED_WELL = [
    *(("checkpoint", name) for name in ["plain", "mha", "mqa", "head_dim=D_by_N", "large_eps"]),
    *(("sglang", name) for name in ["plain", "theta", "linear", "llama3", "yarn"]),
]
# What it loses: fc_norm's tensors, a raw head, a rotation that stands in rope_parameters alone.
CONVERTED_BADLY = ["fc_norm", "norm_output", "no_final_norm", "theta", "llama3"]


def deep_target(directory: Path) -> Path:
    """A target by what a draft's converter and trainer read of it: 8 layers, of which one is there.

    speculators refuses a capture of layers that its verifier has not.
    """
    config = read_json(write_target(directory, width=32, vocab_size=96) / "config.json")
    (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 8}))
    return directory


def convert_theirs(kind: str, run: Run, target: Path) -> dict[str, Any]:
    """A job's entry: speculators' converter on a file of SpecForge."""
    return {
        "name": f"{kind}.{run.name}",
        "mode": "convert",
        "draft": str(run.file(kind)),
        "verifier": str(target),
        "options": {},
    }


@pytest.fixture(scope="module")
def at_speculators(
    speculators_runs: dict[str, Run],
    specforge_runs: dict[str, Run],
    tmp_path_factory: pytest.TempPathFactory,
) -> AtSpeculators:
    """One process for all that speculators reads and converts."""
    folder = tmp_path_factory.mktemp("at_speculators")
    target = deep_target(folder / "target")
    runs = {"speculators": speculators_runs, "specforge": specforge_runs}
    packed = {j: pack(folder, j, runs[j.source][j.name]) for j in TO_SPECULATORS}
    packed[NAMED] = pack(folder, NAMED, specforge_runs[NAMED.name], target)
    conversions = [
        convert_theirs(kind, specforge_runs[name], target)
        for kind, name in [*CONVERTED_WELL, *(("checkpoint", name) for name in CONVERTED_BADLY)]
    ]
    reads = [entry for _, entry in packed.values()]
    run_script("speculators", "run_speculators.py", folder, [*reads, *conversions])
    arrivals = {
        j: unpack(folder, j, runs[j.source][j.name], fitted) for j, (fitted, _) in packed.items()
    }
    return AtSpeculators(arrivals, target, folder)


@pytest.fixture(scope="module")
def at_specforge(
    speculators_runs: dict[str, Run],
    specforge_runs: dict[str, Run],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[Journey, Arrival]:
    """All that SpecForge reads."""
    runs = {"speculators": speculators_runs, "specforge": specforge_runs}
    return travel("specforge", TO_SPECFORGE, runs, tmp_path_factory.mktemp("at_specforge"))


@pytest.fixture(scope="module")
def at_sglang(
    speculators_runs: dict[str, Run],
    specforge_runs: dict[str, Run],
    modelopt_runs: dict[str, Run],
    sglang_runs: dict[str, Run],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[Journey, Arrival]:
    """All that SGLang reads."""
    runs = {
        "speculators": speculators_runs,
        "specforge": specforge_runs,
        "modelopt": modelopt_runs,
        "sglang": sglang_runs,
    }
    return travel("sglang", TO_SGLANG, runs, tmp_path_factory.mktemp("at_sglang"))


class TestTheirConverter:
    """speculators' own converter as a second witness, where it is right."""

    @pytest.mark.parametrize(("kind", "name"), CONVERTED_WELL)
    def test_agrees_with_ours(self, kind, name, at_speculators, specforge_runs):
        run = specforge_runs[name]
        theirs = open_draft(at_speculators.folder / f"{kind}.{name}.checkpoint")
        assert theirs.dialect.name == "speculators-converted"
        ours = convert(run, Journey("specforge", name, "speculators-converted", kind)).draft
        rounded = {name: in_memory(tensor) for name, tensor in ours.tensors.items()}
        whole = {name: tensor.astype(FLOAT32) for name, tensor in rounded.items()}
        embeddings = None if ours.embeddings is None else in_memory(ours.embeddings)
        assert differences(theirs, ours._replace(tensors=whole, embeddings=embeddings)) == []

    @pytest.mark.parametrize("name", ["theta", "llama3"])
    def test_forgets_a_rotation_of_transformers_5(self, name, at_speculators, specforge_runs):
        theirs = open_draft(at_speculators.folder / f"checkpoint.{name}.checkpoint")
        ours = convert(specforge_runs[name], Journey("specforge", name, "speculators"))
        assert (theirs.config.rope.theta, theirs.config.rope.scaling) == (10000.0, None)
        assert ours.draft.config == config_of("specforge", specforge_runs[name])

    def test_drops_the_norms_before_fc(self, at_speculators, specforge_runs):
        with pytest.raises(InputError, match="fc_norm is on, but the file holds no fc_norm"):
            open_draft(at_speculators.folder / "checkpoint.fc_norm.checkpoint")
        ours = convert(specforge_runs["fc_norm"], Journey("specforge", "fc_norm", "speculators"))
        assert {f"fc_norm.{a}.weight" for a in range(3)} <= ours.draft.tensors.keys()

    @pytest.mark.parametrize("name", ["norm_output", "no_final_norm"])
    def test_takes_norm_output_for_that_of_servers(self, name, at_speculators, specforge_runs):
        run = specforge_runs[name]
        theirs = open_draft(at_speculators.folder / f"checkpoint.{name}.checkpoint").config
        assert (theirs.final_norm, theirs.norm_output) == (True, run.knobs["norm_output"])
        journey = Journey("specforge", name, "speculators")
        if name == "no_final_norm":
            with pytest.raises(InputError, match="no place for a missing final norm"):
                convert(run, journey)
        else:
            assert not convert(run, journey).draft.config.norm_output
