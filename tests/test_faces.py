"""The library face: what a notebook does in a line each, on drafts and shards of every form."""

from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import eagle3_jax as e3
from converters import (
    choose_capture,
    load_draft,
    open_shards,
    read_documents,
    read_info,
)
from eagle3_jax.batches import batches, stack
from eagle3_jax.evaluate import evaluate
from eagle3_jax.heads import TargetHead
from tests.samples import (
    BOUNDARIES,
    TABLE,
    VOCAB,
    WIDTH,
    halved,
    require_same,
    texts,
    tiny_draft,
    write_draft,
    write_texts,
)

SLOTS = (0, 1, 2)


def write_shards(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    write_texts(directory / "a.safetensors", texts()[:3])
    write_texts(directory / "b.safetensors", texts()[3:])


def halved_states(text: e3.Document) -> e3.Document:
    return text._replace(states=text.states.astype(ml_dtypes.bfloat16))


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

    def test_a_table_of_another_shape_is_refused(self):
        told = r"table of token embeddings has shape \[3, 3\], expected \[V,D\] = \[32, 8\]"
        with pytest.raises(ValueError, match=told):
            e3.place_draft(tiny_draft(), table=np.zeros((3, 3), np.float32))
        with pytest.raises(ValueError, match=told):
            e3.place_draft(tiny_draft()._replace(embeddings=np.zeros((3, 3), np.float32)))

    @pytest.mark.parametrize("shape", [(VOCAB, WIDTH), (WIDTH, 2 * VOCAB)])
    def test_a_head_of_the_target_of_another_shape_is_refused(self, shape):
        bare = tiny_draft(head="target", draft_vocab_size=VOCAB)
        told = rf"target's head has shape \[{shape[0]}, {shape[1]}\], expected \[D,V\] = \[8, 32\]"
        with pytest.raises(ValueError, match=told):
            e3.place_draft(bare, target_head=jnp.zeros(shape))

    @pytest.mark.parametrize("dtype", [jnp.int32, "bool"])
    def test_a_type_without_fractions_is_refused(self, dtype):
        told = f"dtype is {jnp.dtype(dtype)}, expected one of real numbers like bfloat16"
        with pytest.raises(ValueError, match=told):
            e3.place_draft(tiny_draft(), dtype)

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
