"""The library face: what a notebook does in a line each, on drafts and shards of every form."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest

import eagle3_jax as e3
from converters import (
    choose_capture,
    load_draft,
    open_draft,
    open_shards,
    read_documents,
    read_info,
)
from converters.drafts import LoadedDraft, Reading
from eagle3_jax.batches import batches, stack
from eagle3_jax.config import Llama3Scaling, RopeConfig
from eagle3_jax.evaluate import evaluate
from eagle3_jax.heads import TargetHead
from tests.conftest import latent_heads
from tests.samples import (
    BOUNDARIES,
    TABLE,
    VOCAB,
    WIDTH,
    texts,
    tiny_draft,
    write_draft,
    write_texts,
)

SLOTS = (0, 1, 2)
SCALED = RopeConfig(scaling=Llama3Scaling(8.0, 1.0, 4.0, 64))
FORMS = {
    "plain": {},
    "own embeddings": {"embeddings": True},
    "no boundaries": {"boundaries": None},
    "scaled rope": {"rope": SCALED},
    "latent attention": {"attention": latent_heads()},
    "two layers": {"num_layers": 2, "norm_before_residual": True},
}


def write_native(directory: Path, draft: LoadedDraft) -> Path:
    directory.mkdir()
    parts = (draft.config, draft.params, draft.vocab, draft.embeddings, draft.boundaries)
    e3.write_checkpoint(directory, e3.Checkpoint(*parts, 64, "some/target"))
    return directory


def write_shards(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    write_texts(directory / "a.safetensors", texts()[:3])
    write_texts(directory / "b.safetensors", texts()[3:])


def halved(draft: LoadedDraft) -> LoadedDraft:
    """The same draft with weights of 16 bits."""
    half = jax.tree.map(lambda leaf: leaf.astype(ml_dtypes.bfloat16), draft.params)
    return draft._replace(params=half)


def halved_states(text: e3.Document) -> e3.Document:
    return text._replace(states=text.states.astype(ml_dtypes.bfloat16))


def require_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


class TestNativeDrafts:
    @pytest.mark.parametrize("name", FORMS)
    def test_is_read_as_it_was_written(self, name, tmp_path):
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

    def test_what_is_not_computed_with_is_kept(self, tmp_path):
        opened = open_draft(write_native(tmp_path / "own", tiny_draft()))
        assert (opened.max_positions, opened.target_name) == (64, "some/target")
        assert opened.dialect.name == "native"

    def test_orbax_itself_reads_the_same(self, tmp_path):
        draft = halved(tiny_draft(embeddings=True))
        place = write_native(tmp_path / "own", draft)
        with ocp.PyTreeCheckpointer() as checkpointer:
            tree = checkpointer.metadata(place / "state").item_metadata.tree
            asked = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            theirs = checkpointer.restore(place / "state", restore_args=asked)
        found = load_draft(place)
        require_same(found.params, theirs["params"])
        require_same(found.embeddings, theirs["embeddings"])

    def test_no_jax_is_loaded(self, tmp_path):
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

    def test_a_reading_may_say_another_capture(self, tmp_path):
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
        ],
    )
    def test_a_reading_has_little_else_to_say(self, reading, told, tmp_path):
        place = write_native(tmp_path / "own", tiny_draft())
        with pytest.raises(e3.InputError, match=told):
            load_draft(place, reading)

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            (None, r"draft\.json: no such file, expected a native draft"),
            ("{", r"draft\.json: found text that is not JSON"),
            ("[]", r"draft\.json: format is \[\], expected 'eagle3-jax draft 1'"),
            ('{"format": "eagle3-jax draft 2"}', r"format is 'eagle3-jax draft 2', expected"),
            ('{"format": "eagle3-jax draft 1"}', r"found no draft \('config'\), expected one of"),
            (
                '{"format": "eagle3-jax draft 1", "config": {"type": "Other"}}',
                r"found no draft \('Other'\)",
            ),
        ],
    )
    def test_what_is_no_native_draft_is_told(self, text, told, tmp_path):
        place = write_native(tmp_path / "own", tiny_draft())
        (place / "draft.json").unlink()
        if text is not None:
            (place / "draft.json").write_text(text)
        with pytest.raises(e3.InputError, match=told):
            load_draft(place, Reading(dialect="native"))

    def test_arrays_that_are_missing_are_told(self, tmp_path):
        place = write_native(tmp_path / "own", tiny_draft())
        (place / "state").rename(tmp_path / "elsewhere")
        with pytest.raises(e3.InputError, match="state: found no Orbax checkpoint, expected one"):
            load_draft(place)

    def test_an_array_of_another_shape_is_told(self, tmp_path):
        draft = tiny_draft()
        params = {**draft.params, "norm": {"scale": np.ones(5, np.float32)}}
        place = write_native(tmp_path / "own", draft._replace(params=params))
        with pytest.raises(e3.InputError, match=r"own: .*norm\.weight.*5.*expected"):
            load_draft(place)


class TestPlacedDrafts:
    def test_is_the_triple_in_the_type_of_choice(self):
        loaded = tiny_draft()
        config, params, vocab, *_ = draft = e3.place_draft(loaded, jnp.bfloat16)
        assert (config, vocab) == (loaded.config, loaded.vocab)
        assert {leaf.dtype for leaf in jax.tree.leaves((params, draft.kernel))} == {
            jnp.dtype(jnp.bfloat16)
        }
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))
        require_same(
            params, jax.tree.map(lambda leaf: leaf.astype(ml_dtypes.bfloat16), loaded.params)
        )
        assert draft.table is None

    def test_is_in_float32_unless_asked(self):
        assert e3.place_draft(halved(tiny_draft())).kernel.dtype == jnp.float32

    def test_its_own_table_wins(self):
        others = np.zeros_like(TABLE)
        assert e3.place_draft(tiny_draft(), table=others).table is others
        own = tiny_draft(embeddings=True)
        assert e3.place_draft(own, table=others).table is own.embeddings

    def test_a_tied_head_is_the_table(self):
        tied = tiny_draft(head="tied", draft_vocab_size=VOCAB)
        np.testing.assert_array_equal(e3.place_draft(tied, table=TABLE).kernel, TABLE.T)
        with pytest.raises(ValueError, match="head is its embedding table, which is not given"):
            e3.place_draft(tied)

    def test_a_head_of_the_target_is_asked_for(self):
        bare = tiny_draft(head="target", draft_vocab_size=VOCAB)
        head = jnp.asarray(TABLE.T) * 2
        np.testing.assert_array_equal(e3.place_draft(bare, target_head=head).kernel, head)
        with pytest.raises(ValueError, match="has no head, expected the target's head"):
            e3.place_draft(bare)

    def test_a_cast_leaves_ids_and_masks_alone(self):
        features = e3.stack([halved_states(texts()[0])], slots=SLOTS)
        found = e3.cast(features, jnp.float32)
        assert found.aux.dtype == found.embeddings.dtype == jnp.float32
        assert found.ids.dtype == jnp.int32
        assert found.answer.dtype == found.valid.dtype == jnp.bool_
        assert found.last is None


class TestEvaluation:
    def test_a_line_counts_as_the_parts_by_hand(self):
        draft = e3.place_draft(tiny_draft())
        found = e3.evaluate_documents(draft, texts(), slots=SLOTS, steps=2)
        config, params, vocab, kernel, _ = draft
        by_hand = evaluate(config, params, kernel, vocab, batches(texts(), slots=SLOTS), steps=2)
        assert all((a == b).all() for a, b in zip(found, by_hand, strict=True))
        assert 0.3 < e3.figures(found)["steps"][0]["joint"] < 1

    def test_the_table_of_the_draft_is_what_it_reads(self):
        stored = e3.place_draft(tiny_draft())
        bare = [text._replace(embeddings=None) for text in texts()]
        found = e3.evaluate_documents(stored._replace(table=TABLE), bare, slots=SLOTS, steps=2)
        expected = e3.evaluate_documents(stored, texts(), slots=SLOTS, steps=2)
        assert all((a == b).all() for a, b in zip(found, expected, strict=True))
        with pytest.raises(ValueError, match="stores no embeddings"):
            e3.evaluate_documents(stored, bare, slots=SLOTS)

    def test_with_a_head_the_last_state_says_what_is_due(self):
        kernel = np.random.default_rng(5).normal(size=(WIDTH, VOCAB)).astype(np.float32)
        head, draft = TargetHead(jnp.asarray(kernel), None, 1e-5), e3.place_draft(tiny_draft())
        found = e3.evaluate_documents(draft, texts(), slots=SLOTS, steps=2, head=head)
        fed = batches(texts(), slots=SLOTS, last=len(BOUNDARIES) - 1)
        config, params, vocab, own, _ = draft
        expected = evaluate(config, params, own, vocab, fed, steps=2, head=head)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)

    @pytest.mark.parametrize(
        ("dtype", "products"), [(jnp.float32, "highest"), (jnp.bfloat16, "default")]
    )
    def test_products_are_exact_in_float32(self, dtype, products, monkeypatch):
        asked = []
        real = jax.default_matmul_precision
        monkeypatch.setattr(
            jax, "default_matmul_precision", lambda what: asked.append(what) or real(what)
        )
        e3.evaluate_documents(
            e3.place_draft(tiny_draft(), dtype), texts()[:1], slots=SLOTS, steps=1
        )
        assert asked == [products]

    def test_documents_side_by_side_have_the_longest_one_s_length(self):
        found = e3.stack(texts(), slots=SLOTS)
        expected = stack(texts(), slots=SLOTS, table=None, length=70, rows=4)
        assert all(
            a is b or (np.asarray(a) == np.asarray(b)).all()
            for a, b in zip(found, expected, strict=True)
        )


class TestShards:
    def test_all_files_of_a_set_are_read_in_order(self, tmp_path):
        write_shards(tmp_path)
        shards = open_shards(str(tmp_path))
        assert len(shards.files) > 1
        found = [document.ids.tolist() for document in read_documents(shards)]
        one_by_one = [d.ids.tolist() for file in shards.files for d in read_documents(file)]
        assert found == one_by_one
        first = shards.files[0].path
        assert [d.ids.tolist() for d in read_documents(str(first))] == one_by_one[
            : shards.files[0].documents
        ]
        assert read_info(str(first)) == shards.info

    def test_the_config_s_states_are_looked_up(self, tmp_path):
        write_shards(tmp_path / "shards")
        place = write_draft(tmp_path / "draft", tiny_draft(boundaries=(4, 5, 8)))
        capture = choose_capture(load_draft(place), open_shards(tmp_path / "shards"))
        assert (capture.slots, capture.boundaries) == ((1, 2, 3), (4, 5, 8))
        assert capture.source.startswith("config ")

    def test_a_draft_in_memory_is_named_so(self, tmp_path):
        write_shards(tmp_path)
        shards = open_shards(tmp_path)
        with pytest.raises(e3.InputError, match=r"^in memory: the config does not say which"):
            choose_capture(tiny_draft(boundaries=None), shards)
        assert choose_capture(tiny_draft(), shards).source == "the draft's config"

    @pytest.mark.parametrize("slots", [(0, 1), (0, 1, 4), (0, 1, -1)])
    def test_slots_that_are_not_stored_are_refused(self, slots, tmp_path):
        write_shards(tmp_path)
        with pytest.raises(e3.InputError, match=r"--slots is .*, expected 3 of 0 to 3"):
            choose_capture(tiny_draft(), open_shards(tmp_path), slots)
