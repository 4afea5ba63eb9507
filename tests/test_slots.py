"""What stored states are: statements on states that are known, and what may not be said of them."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converters.shards import open_shards, read_documents
from eagle3_jax.diagnose.findings import as_json
from eagle3_jax.diagnose.likeness import RECOMPUTED, compare, fit_norm, precision_of
from eagle3_jax.diagnose.slots import examine_slots
from eagle3_jax.errors import InputError
from eagle3_jax.heads import TargetHead
from eagle3_jax.ops import rms_norm
from eagle3_jax.structs import Document
from eagle3_jax.target import Target, head_kernel
from tests.test_target import target_params, tiny_target

SHARDS = Path(__file__).parents[1] / "eagle3_jax/demo/shards"
LENGTH, LAYERS, WIDTH, VOCAB = 24, 5, 8, 16
CONFIG = tiny_target(num_layers=LAYERS)
PARAMS = target_params(CONFIG, seed=3)
TABLE = np.asarray(PARAMS["embed_tokens"])
EMBED = "the draft's embed_tokens"
NORM = PARAMS["norm"]["scale"]
HEAD = TargetHead(head_kernel(CONFIG, PARAMS), NORM, CONFIG.rms_norm_eps)


@jax.jit
def every_state(ids):
    output = Target(CONFIG).apply({"params": PARAMS}, ids[None], tuple(range(LAYERS + 1)))
    best = jnp.argmax(output.post_norm[0] @ HEAD.kernel, axis=-1)
    return output.states[0], best


def boundaries_of(ids):
    return np.asarray(every_state(jnp.asarray(ids))[0])


@functools.cache
def texts(count=12):
    """Texts that the target mostly predicts, and its states at every boundary."""
    found = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        ids = rng.integers(0, VOCAB, LENGTH).astype(np.int32)
        for token in range(1, LENGTH):
            if rng.random() < 0.7:
                ids[token] = every_state(jnp.asarray(ids))[1][token - 1]
        found.append((ids, boundaries_of(ids)))
    return found


def stored(*boundaries, count=12, dtype=np.float32, shift=0, post=()):
    """Documents of some boundaries; those in `post` go through the final norm."""
    found = []
    for ids, states in texts()[:count]:
        slots = [states[:, b] for b in boundaries]
        for slot in post:
            slots[slot] = np.asarray(rms_norm(jnp.asarray(slots[slot]), NORM, HEAD.eps))
        whole = np.roll(np.stack(slots, axis=1), -shift, axis=0).astype(dtype)
        found.append(Document(ids, np.ones(len(ids), bool), whole, None))
    return found


def swapped(documents, one, other):
    found = list(documents)
    found[one] = documents[one]._replace(states=documents[other].states)
    found[other] = documents[other]._replace(states=documents[one].states)
    return found


def said(result, strength=None):
    return [f.claim for f in result.findings if strength in (None, f.strength)]


def evidence_of(result, claim):
    (found,) = [f.evidence for f in result.findings if f.claim == claim]
    return found


@functools.cache
def shipped():
    """Some of the real documents that the package ships."""
    return list(read_documents(open_shards([SHARDS]).files[0]))[:4]


def table_of(documents, vocab=49152):
    """Rows of the ids that occur; the others are unknown."""
    table = np.full((vocab, documents[0].embeddings.shape[1]), np.nan, np.float32)
    for document in documents:
        table[document.ids] = document.embeddings
    return table


# The field story: a small norm is no embedding.


@pytest.mark.parametrize("known", ["the table", "the stored boundary 0", "nothing"])
def test_a_small_norm_is_not_the_embedding(known):
    documents, tables = [], {}
    for text in shipped():
        early = (text.states[:, :1].astype(np.float32) / 32).astype(text.states.dtype)
        kept = text.embeddings if known == "the stored boundary 0" else None
        states = np.concatenate([early, text.states[:, 1:]], axis=1)
        documents.append(text._replace(states=states, embeddings=kept))
    if known == "the table":
        tables = {EMBED: table_of(shipped())}
    result = examine_slots(documents, tables=tables)
    norms = [slot.norms.median for slot in result.slots[:4]]
    assert norms[0] == min(norms) < 2.9  # smaller than that of the embeddings
    assert "slot 0 is not the embedding" in said(result, "proved")
    told = evidence_of(result, "slot 0 is not the embedding")
    if known != "nothing":
        name = EMBED if known == "the table" else "the stored boundary 0"
        assert told.startswith(
            f"0 of 671 tokens equal their row of {name}, one token on or back, or a multiple of "
            "it; nearest relative error 1."
        )
    pairs = sum(len(text.ids) - len(set(text.ids.tolist())) for text in shipped())
    assert f"in {pairs} of {pairs} repeats of an id the state is another" in told
    assert told.endswith(f"its median norm, {norms[0]:.3g}, is the smallest: that proves nothing")
    assert not [claim for claim in said(result) if "slot 0 is the embedding" in claim]


def test_the_real_embedding_is_told_bit_for_bit():
    texts = [
        text._replace(
            states=np.concatenate([text.embeddings[:, None], text.states], axis=1), embeddings=None
        )
        for text in shipped()
    ]
    result = examine_slots(texts, tables={EMBED: table_of(shipped())})
    assert (result.documents, result.tokens, result.recomputed) == (4, 671, 0)
    assert evidence_of(result, "slot 0 is the embedding") == (
        f"all of 671 tokens equal their row of {EMBED}, bit for bit"
    )
    assert [c for c in said(result, "proved") if c.endswith("is not the embedding")] == [
        f"slot {slot} is not the embedding" for slot in range(1, 5)
    ]


def test_position_0_and_the_massive_channel_stand_apart():
    result = examine_slots(shipped())
    slot = result.slots[1]
    assert [channel.channel for channel in slot.massive] == [507]
    assert slot.massive[0].first > 24_000 > 200 > slot.massive[0].later
    assert slot.norms.first > 25_000
    assert slot.norms.largest < 300
    assert slot.norms.low < slot.norms.median < slot.norms.high < slot.norms.largest
    assert "slot 1 has massive activations: channel 507" in said(result, "measured")
    assert "the slots ascend through the target" in said(result, "suggested")
    turned = [d._replace(states=d.states[:, ::-1]) for d in shipped()]
    assert any("do not ascend" in told for told in said(examine_slots(turned), "suggested"))
    names = [slot.name for slot in result.slots]
    assert names == ["slot 0", "slot 1", "slot 2", "slot 3", "the stored boundary 0"]
    json.dumps(as_json(result), allow_nan=False)


def test_the_order_of_norms_that_are_about_as_large_suggests_nothing():
    rng = np.random.default_rng(1)
    noise = [d._replace(states=rng.normal(size=d.states.shape)) for d in shipped()]
    assert not any("ascend" in told for told in said(examine_slots(noise), "suggested"))


# Embedding tables.


@pytest.mark.parametrize("kind", [np.float32, np.float16, jnp.bfloat16])
@pytest.mark.parametrize("upcast", [False, True])
def test_the_embedding_survives_its_storage_type(kind, upcast):
    documents = stored(0, 2, dtype=kind)
    if upcast:
        documents = [d._replace(states=d.states.astype(np.float32)) for d in documents]
    result = examine_slots(documents, tables={EMBED: TABLE})
    assert evidence_of(result, "slot 0 is the embedding").endswith("bit for bit")
    match = result.slots[0].tables[0]
    assert (match.equal, match.exact, match.compared) == (288, 288, 288)
    assert "slot 1 is not the embedding" in said(result, "proved")


@pytest.mark.parametrize(
    ("shift", "told"), [(1, " of the next token"), (-1, " of the token before")]
)
def test_a_shifted_embedding_is_named(shift, told):
    documents = [
        d._replace(states=np.stack([np.roll(TABLE[d.ids], -shift, axis=0), d.states[:, 0]], axis=1))
        for d in stored(2)
    ]
    result = examine_slots(documents, tables={EMBED: TABLE})
    assert f"slot 0 is the embedding{told}" in said(result, "proved")
    # Without the table too: which ids the states go with.
    claims = said(examine_slots(documents), "measured")
    assert (
        f"slot 0 depends on the id{told} alone, as an embedding of a table that was not given does"
    ) in claims


@pytest.mark.parametrize("kind", [np.float32, jnp.bfloat16])
def test_a_scaled_embedding_is_named_with_its_constant(kind):
    scale = np.asarray(np.sqrt(WIDTH), kind)
    documents = [d._replace(states=(TABLE[d.ids].astype(kind) * scale)[:, None]) for d in stored(2)]
    result = examine_slots(documents, tables={EMBED: TABLE})
    (claim,) = said(result, "proved")
    assert claim.startswith("slot 0 is the embedding times 2.82")
    assert claim.endswith("(the square root of the width)")
    noisy = [
        d._replace(states=d.states * np.float32(1 + 0.1 * (n % 2))) for n, d in enumerate(documents)
    ]
    claims = said(examine_slots(noisy, tables={EMBED: TABLE}))
    assert not [claim for claim in claims if "slot 0 is the embedding times" in claim]


def test_another_table_is_no_proof_against_an_embedding():
    other = np.random.default_rng(5).normal(size=(VOCAB, WIDTH)).astype(np.float32)
    result = examine_slots(stored(0, 3), tables={EMBED: other})
    assert (
        "slot 0 depends on the id alone, as an embedding of another table than was given does"
    ) in said(result, "measured")
    assert not [claim for claim in said(result) if "slot 0 is not the embedding" in claim]


def test_a_table_of_another_width_is_told():
    result = examine_slots(stored(1), tables={EMBED: np.ones((VOCAB, 6), np.float32)})
    assert evidence_of(result, f"no slot is the embedding in {EMBED}") == (
        "its rows are 6 wide, the states 8"
    )


def test_an_embedding_at_some_tokens_is_not_the_embedding():
    documents = stored(0, 1)
    for document in documents:
        document.states[::3, 0] += 1
    result = examine_slots(documents, tables={EMBED: TABLE})
    assert "slot 0 is the embedding at some tokens only" in said(result, "measured")
    assert not [claim for claim in said(result, "proved") if claim.startswith("slot 0")]


def test_ids_outside_the_table_are_not_compared():
    documents = [d._replace(ids=np.where(d.ids == d.ids[0], 99, d.ids)) for d in stored(0)]
    result = examine_slots(documents, tables={EMBED: TABLE})
    match = result.slots[0].tables[0]
    assert 0 < match.equal == match.compared < result.tokens


# The target's head.


@pytest.mark.parametrize("post", [(), (2,)])
def test_the_norm_that_predicts_says_where_the_last_state_is_from(post):
    result = examine_slots(stored(1, 3, LAYERS, post=post), head=HEAD)
    (claim,) = [c for c in said(result, "measured") if "slot 2 predicts" in c]
    best = ("no norm", "stored after") if post else ("one norm", "stored before")
    assert claim.endswith(f"after {best[0]}: {best[1]} the final norm")
    unit = "slot 2 is stored after the final norm" in said(result, "proved")
    assert unit == bool(post)
    rates = {(rate.norms, rate.offset): rate for rate in result.slots[2].rates}
    # Counted by hand.
    right = 0
    for ids, states in texts():
        state = np.asarray(rms_norm(jnp.asarray(states[:, LAYERS]), NORM, HEAD.eps))
        right += int(np.sum(np.argmax(state @ HEAD.kernel, axis=-1)[1:-2] == ids[2:-1]))
    chosen = rates["none" if post else "one", 1]
    assert (chosen.right, chosen.total) == (right, 12 * (LENGTH - 3))
    assert f"{right / chosen.total:.1%}" in claim
    assert f"{right / chosen.total:.1%} after {best[0]}" in evidence_of(result, claim)


def test_rates_that_are_too_near_are_said_to_be():
    weight = jnp.asarray(1 + 0.06 * np.random.default_rng(0).normal(size=WIDTH), jnp.float32)
    result = examine_slots(stored(LAYERS, post=(0,)), head=HEAD._replace(norm=weight))
    rates = [rate.right for rate in result.slots[0].rates if rate.offset == 1]
    assert sorted(rates)[-1] > sorted(rates)[-2]
    (claim,) = [claim for claim in said(result) if "slot 0 predicts" in claim]
    assert claim.endswith(", or the rates are too near to tell")
    assert claim in said(result, "suggested")


def test_a_last_state_that_is_not_last():
    result = examine_slots(stored(LAYERS, 1), head=HEAD)
    assert ("slot 1, stored last, is not the state that predicts best: slot 0 is") in said(
        result, "measured"
    )
    claims = said(examine_slots(stored(1, LAYERS), head=HEAD))
    assert not [claim for claim in claims if "stored last" in claim]


def test_states_of_the_next_token():
    result = examine_slots(stored(1, LAYERS, shift=1), head=HEAD)
    assert "slot 1 holds the states of the next token" in said(result, "measured")
    assert not [c for c in said(examine_slots(stored(1, LAYERS), head=HEAD)) if "next token" in c]


def test_states_of_the_token_before_are_only_suggested():
    result = examine_slots(stored(1, LAYERS, shift=-1), head=HEAD)
    claim = "slot 1 is an early state, or that of the token before"
    assert claim in said(result, "suggested")
    assert "slot 1 does not predict the text" in said(result, "measured")
    assert not [c for c in said(result) if "stored last" in c or "the final norm" in c]
    assert claim not in said(examine_slots(stored(1, LAYERS), head=HEAD))


def test_the_head_is_asked_of_the_last_tokens_only():
    result = examine_slots(stored(1, LAYERS), head=HEAD, max_asked=9)
    rates = {(rate.norms, rate.offset): rate for rate in result.slots[1].rates}
    right = sum(
        int(np.sum(np.asarray(every_state(jnp.asarray(ids))[1])[-9:-2] == ids[-8:-1]))
        for ids, _ in texts()
    )
    assert rates["one", 1][2:] == (right, 12 * 7)
    nothing = examine_slots(stored(1, LAYERS), head=HEAD, max_asked=2)
    assert not [claim for claim in said(nothing) if "predict" in claim]
    assert [claim for claim in said(result) if claim.startswith("slot 1 predicts the next id")]


def test_a_head_without_its_norm_says_less():
    result = examine_slots(stored(LAYERS, post=(0,)), head=HEAD._replace(norm=None))
    assert {rate.norms for rate in result.slots[0].rates} == {"none"}
    assert not [claim for claim in said(result) if "the final norm" in claim]
    assert [claim for claim in said(result, "measured") if "slot 0 predicts the next id" in claim]


# Shards whose states are another text's.


@pytest.mark.parametrize("table", [False, True])
def test_swapped_states_are_blamed_on_the_shard(table):
    documents = swapped(stored(0, 3, LAYERS), 4, 7)
    options = {"tables": {EMBED: TABLE}} if table else {"head": HEAD}
    result = examine_slots(documents, **options)
    blamed = [claim for claim in said(result) if claim.startswith("the shard is suspect")]
    if table:
        assert blamed == [
            f"the shard is suspect: slot 0 of document {one} does not hold the embeddings of its "
            f"ids but those of document {other}"
            for one, other in ((4, 7), (7, 4))
        ]
        assert set(blamed) <= set(said(result, "proved"))
        assert "documents 4 and 7 apart, which are suspect" in evidence_of(
            result, "slot 0 is the embedding"
        )
    else:
        swap = (
            "the shard is suspect: the states of documents 4 and 7 are swapped: each predict the "
            "other's ids, not their own"
        )
        assert [claim for claim in said(result, "measured") if "swapped" in claim] == [swap]
        assert result.slots[2].suspects == (4, 7)
        assert {rate.total for rate in result.slots[2].rates} == {10 * (LENGTH - 3)}


def test_two_documents_that_were_swapped_need_no_third():
    ids = [np.concatenate([ids for ids, _ in texts()[start::2]]) for start in (0, 1)]
    states = [np.concatenate([s[:, [LAYERS]] for _, s in texts()[start::2]]) for start in (1, 0)]
    documents = [
        Document(one, np.ones(len(one), bool), of, None)
        for one, of in zip(ids, states, strict=True)
    ]
    assert [c for c in said(examine_slots(documents, head=HEAD)) if "0 and 1 are swapped" in c]


def test_states_of_nobody_are_suspect_too():
    documents = stored(2, LAYERS)
    noise = np.random.default_rng(9).normal(size=documents[5].states.shape).astype(np.float32)
    documents[5] = documents[5]._replace(states=noise)
    result = examine_slots(documents, head=HEAD)
    assert [c for c in said(result, "measured") if "suspect" in c] == [
        "the shard is suspect: the states of document 5 do not predict its ids; they may be "
        "another document's"
    ]


def test_sound_shards_are_not_suspect():
    result = examine_slots(stored(0, 2, LAYERS), head=HEAD, tables={EMBED: TABLE})
    assert not [claim for claim in said(result) if "suspect" in claim]
    assert all(slot.suspects == () for slot in result.slots)


# The target run anew.


@pytest.mark.parametrize("kind", [np.float32, jnp.bfloat16])
def test_boundaries_are_found_by_running_the_target(kind):
    documents = stored(1, 3, LAYERS, LAYERS, dtype=kind, post=(3,))
    result = examine_slots(documents, head=HEAD, boundaries_of=boundaries_of)
    proved = said(result, "proved")
    for slot, name in enumerate(("boundary 1", "boundary 3", f"boundary {LAYERS}")):
        assert f"slot {slot} is {name}" in proved
    assert "slot 3 is boundary L after the final norm" in proved
    assert result.recomputed == 4
    assert result.slots[0].boundaries[0].compared == 4 * LENGTH


def test_shards_that_are_wrong_on_a_slot_are_told():
    documents = stored(1, 3, LAYERS)
    right = examine_slots(documents, boundaries_of=boundaries_of, stated=(1, 3, LAYERS))
    assert right.suspicions == ()
    wrong = examine_slots(documents, boundaries_of=boundaries_of, stated=(1, 2, LAYERS))
    (told,) = wrong.suspicions
    assert told in wrong.findings
    assert told.strength == "proved"
    assert told.claim == ("the shards are wrong on slot 1: they say boundary 2, it is boundary 3")


def test_boundaries_of_neighbouring_tokens_after_norms_and_nearest():
    ahead = stored(2, shift=1)
    states = [
        np.concatenate(
            [one.states, np.asarray(rms_norm(jnp.asarray(plain.states), 2 * NORM[::-1], 1e-5))], 1
        )
        for one, plain in zip(ahead, stored(3), strict=True)
    ]
    noise = np.random.default_rng(4)
    documents = []
    for one, both, plain in zip(ahead, states, stored(4, 2), strict=True):
        near = plain.states[:, :1] * (1 + 0.01 * noise.normal(size=plain.states[:, :1].shape))
        far = plain.states[:, 1:] + 2 * noise.normal(size=plain.states[:, 1:].shape)
        # The row that was rolled around is no token's.
        whole = np.concatenate([both, near, far], axis=1)[:-1].astype(np.float32)
        documents.append(Document(one.ids[:-1], one.answer[:-1], whole, None))
    # The target is asked for the states of one more token than the document has.
    longer = {
        document.ids.tobytes(): ids for document, (ids, _) in zip(documents, texts(), strict=True)
    }

    def states_of(ids):
        return boundaries_of(longer[ids.tobytes()])[: len(ids)]

    result = examine_slots(documents, boundaries_of=states_of)
    assert "slot 0 is boundary 2 of the next token" in said(result, "proved")
    assert "slot 1 is boundary 3 after a norm" in said(result, "proved")
    assert "slot 2 is nearest to boundary 4, not equal" in said(result, "measured")
    assert [c for c in said(result, "suggested") if c.startswith("slot 3 is nearest to boundary")]
    assert not [c for c in said(result, "proved") if c.startswith(("slot 2 is b", "slot 3 is b"))]


def test_states_of_another_width_are_refused():
    with pytest.raises(InputError) as caught:
        examine_slots(stored(1), boundaries_of=lambda ids: boundaries_of(ids)[..., :6])
    assert str(caught.value) == (
        "the target's states of 24 tokens have shape [24, 6, 6], expected [24, boundaries, 8], as "
        "wide as the stored states"
    )


# Broken, tiny and meaningless shards.


def test_noise_proves_and_predicts_nothing():
    rng = np.random.default_rng(0)
    documents = [
        d._replace(states=rng.normal(size=(LENGTH, 3, WIDTH)).astype(np.float32)) for d in stored(0)
    ]
    result = examine_slots(documents, tables={EMBED: TABLE}, head=HEAD, boundaries_of=boundaries_of)
    for claim in said(result, "proved"):
        assert claim.endswith("is not the embedding")
    assert [c for c in said(result, "measured")] == [
        f"slot {slot} does not predict the text" for slot in range(3)
    ]


@pytest.mark.parametrize("length", [1, 3])
def test_one_short_document(length):
    ids = np.arange(length, dtype=np.int32)
    states = np.stack([TABLE[ids], 2 * TABLE[ids] + 1], axis=1)
    document = Document(ids, np.ones(length, bool), states, TABLE[ids])
    result = examine_slots(
        [document], tables={EMBED: TABLE}, head=HEAD, boundaries_of=boundaries_of
    )
    assert "slot 0 is the embedding" in said(result, "proved")
    assert f"slot 1 is not the embedding in {EMBED} or the stored boundary 0" in said(result)
    assert not [claim for claim in said(result) if "suspect" in claim or "predict" in claim]
    bare = examine_slots([document._replace(embeddings=None)])
    if length > 1:
        assert "slot 0 is the earliest state stored" in said(bare, "suggested")
    assert said(bare, "proved") + said(bare, "measured") == []
    json.dumps(as_json(result), allow_nan=False)


def test_zero_slots_and_dead_channels():
    documents = stored(1, 2)
    for document in documents:
        document.states[:, 0] = 0
        document.states[:, 1, [3, 5]] = 0
    result = examine_slots(documents, tables={EMBED: TABLE}, head=HEAD)
    assert "slot 0 is zero throughout" in said(result, "proved")
    assert not [c for c in said(result) if c.startswith("slot 0 is") and "zero" not in c]
    assert result.slots[1].dead == (3, 5)
    assert evidence_of(result, "slot 1 has channels that are always zero") == (
        "2 of 8 channels, the first is 3"
    )


def test_values_that_are_not_finite_are_counted_and_left_out():
    documents = stored(0, 2, LAYERS)
    documents[0].states[3, 0, 1] = np.nan
    documents[1].states[4, 0] = np.inf
    documents[2].states[:, 1] = np.nan
    result = examine_slots(documents, tables={EMBED: TABLE}, head=HEAD, boundaries_of=boundaries_of)
    assert [(slot.nan, slot.infinite) for slot in result.slots] == [(1, 8), (192, 0), (0, 0)]
    assert evidence_of(result, "slot 0 holds values that are not finite") == (
        "1 NaN and 8 infinite of 2,304; float16 ends at 65,504. Tokens that hold one count nowhere"
    )
    assert evidence_of(result, "slot 0 is the embedding").startswith("all of 286 tokens")
    assert "slot 1 is boundary 2" in said(result, "proved")
    every = [d._replace(states=np.full_like(d.states, np.nan)) for d in documents]
    result = examine_slots(every, tables={EMBED: TABLE}, head=HEAD, boundaries_of=boundaries_of)
    assert [c for c in said(result, "proved") if "not finite" not in c] == []
    json.dumps(as_json(result), allow_nan=False)


def test_float16_overflows_at_a_massive_activation():
    documents = []
    for document in stored(0, 2):
        states = document.states.copy()
        states[0, 1, 5] = 1e5
        with np.errstate(over="ignore"):
            documents.append(document._replace(states=states.astype(np.float16)))
    result = examine_slots(documents, boundaries_of=boundaries_of)
    assert result.slots[1].infinite == 12
    # All but the first token of the four documents that were run anew.
    assert evidence_of(result, "slot 1 is boundary 2").startswith("all of 92 tokens")


def test_slots_that_hold_the_same():
    assert "slots 0 and 1 hold the same states" in said(examine_slots(stored(2, 2, 3)), "proved")
    assert not [c for c in said(examine_slots(stored(1, 2))) if "hold the same" in c]


def test_only_so_much_is_read():
    def endless():
        while True:
            yield from stored(0, 2)

    result = examine_slots(endless(), tables={EMBED: TABLE}, max_documents=5, max_tokens=10)
    assert (result.documents, result.tokens) == (5, 50)
    assert result.slots[0].tables[0].compared == 50


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "found no document, expected at least one"),
        (
            [stored(0)[0], stored(0, 1)[0]],
            "document 1 holds states of shape [24, 2, 8], expected [24, 1, 8]",
        ),
        (
            [Document(np.zeros(0, np.int32), np.zeros(0, bool), np.zeros((0, 1, 8)), None)],
            "document 0 holds no token, expected some",
        ),
        (
            [stored(0)[0]._replace(embeddings=TABLE[:24].repeat(2, axis=0)[:24]), stored(0)[1]],
            "document 1 holds embeddings of width None, expected 8 as in document 0",
        ),
        (
            [stored(0)[0]._replace(states=np.zeros((24, 0, 8), np.float32))],
            "documents hold no state, expected one or more of each token",
        ),
        (
            [stored(0)[0]._replace(states=np.zeros((24, 2, 6), np.float32))],
            "the target's head reads width 8, expected 6, that of the stored states",
        ),
    ],
)
def test_what_is_refused(documents, message):
    with pytest.raises(InputError) as caught:
        examine_slots(documents, head=HEAD)
    assert str(caught.value) == message


# The comparison itself.


def test_a_massive_channel_does_not_hide_the_others():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4, 64)).astype(np.float32)
    rows[:, 7] = 25_000
    other = rows + (np.arange(64) == 3) * np.float32(0.5)
    assert compare(rows, rows.astype(jnp.bfloat16)).equal.all()
    likeness = compare(other, rows.astype(jnp.bfloat16))
    assert (likeness.error < 2e-3).all()
    assert not likeness.equal.any()
    assert not compare(other, rows, slack=RECOMPUTED).equal.any()
    assert compare(rows * np.float32(1.0005), rows, slack=RECOMPUTED).equal.all()


def test_precision_is_that_of_the_values():
    values = np.random.default_rng(0).normal(size=100).astype(np.float32)
    assert precision_of(values) == np.float32
    assert precision_of(values.astype(np.float16).astype(np.float32)) == np.float16
    assert precision_of(values.astype(jnp.bfloat16).astype(np.float32)) == jnp.bfloat16
    assert precision_of(values.astype(np.float16)) == np.float16


def test_a_norm_needs_more_rows_than_it_explains():
    rows = np.random.default_rng(0).normal(size=(9, 8))
    assert fit_norm(rows[:3], rows[:3]) is None
    other = np.random.default_rng(1).normal(size=(9, 8))
    assert not compare(other, fit_norm(other, rows), roundings=2).equal.any()
