"""Native drafts: read as they were written, and what is wrong with one is told where it is."""

import json
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import eagle3_jax as e3
from converters import load_draft, open_draft
from converters.drafts import LoadedDraft, Reading
from eagle3_jax.config import Llama3Scaling, LongRopeScaling, RopeConfig
from tests.conftest import latent_heads
from tests.samples import halved, require_same, tiny_draft

MISSING = object()
LONG = RopeConfig(scaling=LongRopeScaling((1.0, 2.0), (3.0, 4.5), 64, 2.0))
SCALED = RopeConfig(scaling=Llama3Scaling(8.0, 1.0, 4.0, 64))
FORMS = {
    "plain": {},
    "own embeddings": {"embeddings": True},
    "no boundaries": {"boundaries": None},
    "scaled rope": {"rope": SCALED},
    "longrope": {"rope": LONG},
    "latent attention": {"attention": latent_heads()},
    "two layers": {"num_layers": 2, "norm_before_residual": True},
}


def write_native(directory: Path, draft: LoadedDraft) -> Path:
    directory.mkdir()
    parts = (draft.config, draft.params, draft.vocab, draft.embeddings, draft.boundaries)
    e3.write_checkpoint(str(directory), e3.Checkpoint(*parts, 64, "some/target"))
    return directory


@pytest.mark.parametrize("name", FORMS)
def test_is_read_as_it_was_written(name, tmp_path):
    draft = halved(tiny_draft(**FORMS[name]))
    found = load_draft(str(write_native(tmp_path / "own", draft)))
    assert found.config == draft.config
    require_same(found.params, draft.params)
    np.testing.assert_array_equal(found.vocab.target_ids, draft.vocab.target_ids)
    assert found.boundaries == draft.boundaries
    assert found.capture_source == "draft.json"
    assert found.path == tmp_path / "own"
    if draft.embeddings is None:
        assert found.embeddings is None
    else:
        require_same(found.embeddings, draft.embeddings)


def test_what_is_not_computed_with_is_kept(tmp_path):
    opened = open_draft(write_native(tmp_path / "own", tiny_draft()))
    assert (opened.max_positions, opened.target_name) == (64, "some/target")
    assert opened.dialect.name == "native"


def test_orbax_itself_reads_the_same(tmp_path):
    draft = halved(tiny_draft(embeddings=True))
    place = write_native(tmp_path / "own", draft)
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.metadata(place / "state").item_metadata.tree
        asked = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        theirs = checkpointer.restore(place / "state", restore_args=asked)
    found = load_draft(place)
    require_same(found.params, theirs["params"])
    require_same(found.embeddings, theirs["embeddings"])


def test_no_jax_is_loaded(tmp_path):
    place = write_native(tmp_path / "own", tiny_draft())
    code = (
        "import sys; from converters import load_draft; load_draft(sys.argv[1]); "
        "assert not {'jax', 'orbax'} & set(sys.modules)"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code, str(place)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_reading_may_say_another_capture(tmp_path):
    place = write_native(tmp_path / "own", tiny_draft())
    found = load_draft(place, Reading(boundaries=(1, 2, 3)))
    assert (found.boundaries, found.capture_source) == ((1, 2, 3), "--boundaries")
    with pytest.raises(e3.InputError, match="1, 2, 3"):
        load_draft(place, Reading(boundaries=(1, 2, 3), target_layers=2))


@pytest.mark.parametrize(
    ("reading", "told"),
    [
        (
            Reading(dialect="vllm"),
            "own: holds draft.json, so it is a native draft, expected no --from",
        ),
        (
            Reading(settings={"norm_output": True}),
            "own: a native draft says everything, expected no --set",
        ),
        (
            Reading(allowed=frozenset({"embed_tokens", "embed_token"})),
            "own: --allow embed_token means nothing for a native draft, expected one of ",
        ),
    ],
)
def test_a_reading_has_little_else_to_say(reading, told, tmp_path):
    place = write_native(tmp_path / "own", tiny_draft())
    with pytest.raises(e3.InputError, match=told):
        load_draft(place, reading)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return write_native(tmp_path_factory.mktemp("native") / "own", tiny_draft())


@pytest.fixture
def place(written, tmp_path) -> Path:
    """A draft of one's own, to break."""
    return Path(shutil.copytree(written, tmp_path / "own"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, r"draft\.json: no such file, expected a native draft"),
        ("{", r"draft\.json: found text that is not JSON"),
        ("[]", r"draft\.json: found a JSON list, expected an object"),
        ('{"format": "eagle3-jax draft 2"}', r"format is 'eagle3-jax draft 2', expected"),
        (
            '{"format": "eagle3-jax draft 1"}',
            r"draft\.json: found no config, expected a part of type DraftConfig$",
        ),
    ],
)
def test_what_is_no_native_draft_is_told(text, told, place):
    (place / "draft.json").unlink()
    if text is not None:
        (place / "draft.json").write_text(text)
    with pytest.raises(e3.InputError, match=told):
        load_draft(place, Reading(dialect="native"))


def fields_of(node, path=()):
    found = []
    for name, value in node.items():
        found.append((*path, name))
        if isinstance(value, dict):
            found += fields_of(value, (*path, name))
    return found


def change(place: Path, path: str, value: object) -> None:
    """Say something else in a draft.json, or leave it out."""
    told = node = json.loads((place / "draft.json").read_text())
    *folders, leaf = path.split(".")
    for folder in folders:
        node = node[folder]
    if value is MISSING:
        del node[leaf]
    else:
        node[leaf] = value
    (place / "draft.json").write_text(json.dumps(told))


def test_no_field_is_taken_for_granted(place):
    whole = (place / "draft.json").read_text()
    every = fields_of(json.loads(whole))
    assert ("config", "attention", "sliding_window") in every
    parts = (e3.DraftConfig, e3.AttentionConfig, RopeConfig)
    assert len(every) == 5 + sum(len(fields(part)) + 1 for part in parts)
    for path in every:
        (place / "draft.json").write_text(whole)
        change(place, ".".join(path), MISSING)
        said = "format is None" if path == ("format",) else "found no " + r"\.".join(path) + ", exp"
        said = said if path[-1] != "type" else r"\.".join(path) + " is null, expected "
        with pytest.raises(e3.InputError, match=rf"own/draft\.json: {said}"):
            load_draft(place)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("config.norm_output", "false", 'is "false", expected true or false'),
        ("config.norm_output", 0, "is 0, expected true or false"),
        ("config.rms_norm_eps", "1e-5", 'is "1e-5", expected a finite number'),
        ("config.rms_norm_eps", True, "is true, expected a finite number"),
        ("config.rms_norm_eps", float("nan"), "is NaN, expected a finite number"),
        ("config.rms_norm_eps", float("-inf"), "is -Infinity, expected a finite number"),
        ("config.rms_norm_eps", 10**400, "0, expected a finite number"),
        ("config.num_aux", 3.0, "is 3.0, expected an integer"),
        ("config.num_layers", True, "is true, expected an integer"),
        ("config.head", "its own", 'is "its own", expected "own" or "tied" or "target"'),
        ("config.head", ["own"], r'is \["own"\], expected "own" or'),
        ("config.attention.sliding_window", "8", 'is "8", expected an integer or null'),
        ("config.attention.type", "Other", 'is "Other", expected AttentionConfig or LatentAtt'),
        ("config.attention.type", ["Other"], r'is \["Other"\], expected AttentionConfig or Lat'),
        ("config.attention", None, "is null, expected a part of type AttentionConfig or a part"),
        ("config.rope.scaling", "linear", 'is "linear", expected a part of type LinearScaling or'),
        ("config.rope.scaling", {"type": "LinearScaling"}, r"found no config.rope.scaling.factor,"),
        ("config", "DraftConfig", 'is "DraftConfig", expected a part of type DraftConfig'),
        ("config.norm_outptu", False, "is unknown, expected hidden_size, target_hidden_size"),
        ("norm_output", True, "is unknown, expected config, boundaries, max_positions, target"),
        ("boundaries", [2.5, 3, 4], r"is \[2.5, 3, 4\], expected a list of integers or null"),
        ("boundaries", "abc", 'is "abc", expected a list of integers or null'),
        ("boundaries", [2, True, 4], r"is \[2, true, 4\], expected a list of integers"),
        ("max_positions", "many", 'is "many", expected an integer or null'),
        ("target_name", ["a"], r'is \["a"\], expected a string or null'),
        ("config.num_aux", -1, "num_aux is -1, expected 0 or more"),
    ],
)
def test_a_field_of_another_type_is_told(path, value, told, place):
    change(place, path, value)
    named = path if told.startswith(("is ", "0, ")) else ""
    with pytest.raises(e3.InputError, match=rf"^\S*own/draft\.json: {named}.*{told}"):
        load_draft(place)


def test_a_whole_number_may_stand_for_a_real_one(place):
    change(place, "config.rope.theta", 10000)
    theta = load_draft(place).config.rope.theta
    assert (theta, type(theta)) == (10000.0, float)


def test_boundaries_that_no_target_has_are_told_with_the_draft(place):
    change(place, "boundaries", [4, 3, 2])
    with pytest.raises(e3.InputError, match=r"own: boundaries \[4, 3, 2\]"):
        load_draft(place)


def data_files(place: Path) -> list[Path]:
    return [file for file in (place / "state").rglob("d/*") if file.is_file()]


def truncate(place: Path) -> None:
    for file in data_files(place):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(place: Path) -> None:
    for file in data_files(place):
        file.write_bytes(bytes(byte ^ 0xFF for byte in file.read_bytes()))


def remove(place: Path) -> None:
    for file in data_files(place):
        file.unlink()


def break_manifest(place: Path) -> None:
    (place / "state" / "manifest.ocdbt").write_bytes(b"no manifest")


@pytest.mark.parametrize("damage", [truncate, flip, remove, break_manifest])
def test_damaged_arrays_are_told(damage, place):
    damage(place)
    with pytest.raises(e3.InputError, match=r"own/state: found arrays that cannot be read \(\w+"):
        load_draft(place)


@pytest.mark.parametrize("name", ["_METADATA", "manifest.ocdbt"])
def test_an_index_that_is_missing_is_told(name, place):
    (place / "state" / name).unlink()
    with pytest.raises(e3.InputError, match=f"own/state: found no {name}, expected an Orbax"):
        load_draft(place)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"target_ids": np.arange(12) + 0.5},
            r"state: target_ids is float64 \[12\], expected a row of integers",
        ),
        ({"target_ids": np.ones((12, 1), np.int32)}, r"state: target_ids is int32 \[12, 1\], exp"),
        ({"target_ids": {"a": np.arange(12)}}, "state: target_ids is a tree, expected a row"),
        ({"target_ids": np.arange(12) + 21}, "state: draft vocabulary holds ids 21 to 32, exp"),
        ({"params": np.arange(12)}, r"state: params is int64 \[12\], expected a tree"),
        ({"extra": np.arange(12)}, "state: holds extra, params, target_ids, expected params, ta"),
        ({"params": None}, "state: holds target_ids, expected params, target_ids and at most emb"),
    ],
)
def test_arrays_that_make_no_draft_are_told(changes, told, place):
    draft = tiny_draft()
    state = {"params": draft.params, "target_ids": draft.vocab.target_ids} | changes
    shutil.rmtree(place / "state")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(
            place / "state", {name: part for name, part in state.items() if part is not None}
        )
    with pytest.raises(e3.InputError, match=told):
        load_draft(place)


def test_an_array_of_another_shape_is_told(tmp_path):
    draft = tiny_draft()
    params = {**draft.params, "norm": {"scale": np.ones(5, np.float32)}}
    place = write_native(tmp_path / "own", draft._replace(params=params))
    with pytest.raises(e3.InputError, match=r"own: .*norm\.weight.*5.*expected"):
        load_draft(place)
