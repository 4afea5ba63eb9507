# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # From accuracy to tokens per round
#
# What a draft saves is told by one number: tokens per forward pass of the target. It is not the
# accuracy that training prints, nor a simple function of it. Three lengths are made here from the
# same predictions, and then checked against a drafting loop that runs one token at a time with a
# cache, as a server does.

# %%
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import eagle3_jax
from converters import choose_capture, load_draft, open_shards, read_documents
from eagle3_jax import evaluate_documents, figures, intervals, place_draft, stack, unroll
from eagle3_jax.ops import due_at, read_at
from eagle3_jax.propose import draft_one, read_prefix
from eagle3_jax.rollout import greedy_ids

BLUE, ORANGE, GREY = "#17457a", "#f0a24e", "#8b97a5"
STEPS = 5
demo = Path(eagle3_jax.__file__).parent / "demo"
loaded, shards = load_draft(demo / "draft"), open_shards(demo / "shards")
slots = choose_capture(loaded, shards).slots
draft = place_draft(loaded)
target_ids = jnp.asarray(draft.vocab.target_ids)
documents = list(read_documents(shards))

# %% [markdown]
# ## Three accuracies
#
# - **Teacher-forced** at step k: right at k, while the tokens before it come from the text. This is
#   what trainers print for each step.
# - **Joint**: right at all steps 0 to k. A server takes the k-th token only then.
# - **Conditional**: right at k among the columns that were right before it.

# %%
counts = evaluate_documents(draft, documents, slots=slots, steps=STEPS)
found = figures(counts)
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
for name, color in {"teacher_forced": GREY, "joint": BLUE, "conditional": ORANGE}.items():
    shares = [step[name] for step in found["steps"]]
    axes.plot(range(STEPS), shares, "o-", color=color)
    axes.text(STEPS - 0.9, shares[-1], name.replace("_", "-"), color=color, va="center")
axes.set(xlabel="step k", ylabel="share of columns", ylim=(0, 1), xlim=(-0.2, STEPS + 0.1))
axes.set_xticks(range(STEPS))
axes.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## What a bare accuracy would promise
#
# The first step's accuracy p alone suggests 1 + p + p² + ... The teacher-forced accuracies, added
# up, promise more still: they count a right token behind a wrong one. The joint ones, added up, are
# the mean over all columns of the tokens that greedy verification accepts. And a server does not
# draft from all columns: it goes on behind what it accepted. A stretch of easy columns is one round
# of it, where the mean counts each of them, so a server's columns are harder than the average one.
# `walked` follows it.

# %%
p = found["steps"][0]["joint"]
lengths = {
    "1 + p + p² + ...": 1 + sum(p**k for k in range(1, STEPS + 1)),
    "1 + sum of teacher-forced": 1 + sum(step["teacher_forced"] for step in found["steps"]),
    "1 + sum of joint": found["tokens_per_round"],
    "walked, as a server would": found["walked"]["tokens_per_round"],
}
for name, length in lengths.items():
    print(f"{name:>26}: {length:.2f} tokens per round")
print(f"\n95% intervals over {len(documents)} documents")
for name, (low, high) in intervals(counts).items():
    print(f"{name:>26}: {low:.2f} to {high:.2f}")

# %% [markdown]
# The same by the number of steps. Each further step gains less, and the gap between the two lengths
# grows: the longer the drafts, the more easy columns are passed over in one round.

# %%
joint = 1 + np.cumsum([step["joint"] for step in found["steps"]])
walked = [walk["tokens_per_round"] for walk in found["walked_by_steps"]]
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
for name, values, color in (("1 + sum of joint", joint, GREY), ("walked", walked, BLUE)):
    axes.plot(range(1, STEPS + 1), values, "o-", color=color)
    axes.annotate(name, (STEPS, values[-1]), (8, -3), textcoords="offset points", color=color)
axes.set(xlabel="draft steps per round", ylabel="tokens per round", xlim=(0.8, STEPS + 1.3))
axes.set_xticks(range(1, STEPS + 1))
axes.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## A drafting loop with a cache
#
# All of this came from `unroll`, which runs every column at once on the text's own tokens. Why may
# it speak for a server, which drafts from one prefix on its own tokens? Because as long as a chain
# is right the two read the same tokens, and after the first wrong one nothing is accepted.
#
# Here is the server's way for one document. Each row of the batch is a prefix of the text: read
# once into a cache (`read_prefix`), then one token after the other (`draft_one`). A chain ends at
# its first wrong token. What stands behind its prefix a row must not see: it is noise here.

# %%
document = sorted(documents, key=lambda document: len(document.ids))[len(documents) // 2]
features = stack([document], slots=slots)
aux, embeddings = (x.astype(jnp.float32) for x in (features.aux, features.embeddings))
columns = jnp.asarray(np.flatnonzero(due_at(features.answer, 0)[0]))
behind = (jnp.arange(len(document.ids)) > columns[:, None])[..., None]
noise = jax.random.normal(jax.random.key(0), (len(columns), 1, 1)) * 100
start = jax.jit(read_prefix, static_argnums=0, static_argnames="room")
go_on = jax.jit(draft_one, static_argnums=0)

prefix = start(
    draft.config,
    draft.params,
    jnp.where(behind, noise, read_at(embeddings, 0)),
    jnp.where(behind, noise, aux),
    room=STEPS - 1,
)
each = jnp.arange(len(columns))
state, read = (part[each, columns][:, None] for part in (prefix.state, prefix.head_input))
memory, alive, accepted = prefix.memory, np.ones(len(columns), bool), np.zeros(len(columns), int)
for k in range(STEPS):
    said = np.asarray(greedy_ids(read[:, 0], draft.kernel, target_ids))
    wanted = np.asarray(due_at(features.ids, k)[0, columns])
    alive &= (said == wanted) & np.asarray(due_at(features.answer, k)[0, columns])
    accepted += alive
    if k + 1 < STEPS:
        # The drafted token's embedding. Where a chain is over it does not matter what it reads.
        token = read_at(embeddings, k + 1)[0, columns][:, None]
        step = go_on(draft.config, draft.params, token, state, memory, columns + k + 1)
        state, read, memory = step.state, step.head_input, step.memory
print(f"{len(columns)} chains, {accepted.mean():.2f} tokens accepted on average")

# %% [markdown]
# And by `unroll`, all columns at once:

# %%
predicted = jax.jit(
    lambda params: unroll(
        draft.config,
        params,
        aux,
        embeddings,
        steps=STEPS,
        read=lambda _, step: greedy_ids(step.head_input, draft.kernel, target_ids),
        valid=features.valid,
    )
)(draft.params)
right = np.stack(
    [
        (predicted[k, 0] == due_at(features.ids, k)[0]) & due_at(features.answer, k)[0]
        for k in range(STEPS)
    ]
)
at_once = np.cumprod(right, axis=0).sum(0)[columns]
print(f"the two agree at {(at_once == accepted).sum()} of {len(columns)} columns")
assert (at_once == accepted).all()

# %% [markdown]
# ## The walk, by hand
#
# A server begins at the first token of the answer and goes on behind what it accepted and the token
# that the target adds. The rounds are these columns, and only these.

# %%
jump = dict(zip(columns.tolist(), accepted.tolist(), strict=True))
column, rounds, gained = int(np.flatnonzero(document.answer)[0]) - 1, [], 0
while column in jump:
    rounds.append(column)
    # The last round may end with the answer, where the target has no token to add.
    gained += min(jump[column] + 1, len(document.ids) - column - 2)
    column += jump[column] + 1

figure, axes = plt.subplots(figsize=(9, 2.4), layout="constrained")
axes.bar(columns, accepted, width=1.0, color="#d9e0e8", label="accepted from each column")
axes.bar(rounds, [jump[c] for c in rounds], width=1.0, color=BLUE, label="where a server drafts")
axes.plot(rounds, np.full(len(rounds), -0.3), "^", color=ORANGE, markersize=4, label="a round")
axes.set(xlabel="column of the text", ylabel="accepted", ylim=(-0.6, STEPS + 1.6))
axes.legend(frameon=False, ncols=3, loc="upper right", fontsize=9)
axes.spines[["top", "right"]].set_visible(False)
print(f"over all columns {1 + accepted.mean():.2f} per round; walked {gained / len(rounds):.2f}")
print(f"{gained} tokens in {len(rounds)} rounds")

# %% [markdown]
# This answer ends in a loop, as greedy answers of small models do, and there the draft is always
# right. The mean over columns counts each column of the loop; a server passes six of them a round.
#
# `evaluate_documents` counted the same rounds and tokens for this document:

# %%
number = [one is document for one in documents].index(True)
counted = (int(counts.gained[number, -1]), int(counts.rounds[number, -1]))
print(f"{counted[0]} tokens in {counted[1]} rounds")
assert counted == (gained, len(rounds))
