# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # What a draft says, token by token
#
# The draft of SmolLM2-135M-Instruct that ships with the package, on one of its held-out answers:
# what it finds likely, how sure it is, where it is sure and wrong, and how far its chains go.
# A draft is a triple (config, params, vocabulary); everything below is a function of it.

# %%
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import eagle3_jax
from converters import choose_capture, load_draft, open_shards, read_documents
from eagle3_jax import place_draft, stack, unroll
from eagle3_jax.ops import due_at, project

BLUE, ORANGE, PALE = "#17457a", "#f0a24e", "#d9e0e8"
demo = Path(eagle3_jax.__file__).parent / "demo"
loaded = load_draft(demo / "draft")
draft = place_draft(loaded)
draft.config

# %% [markdown]
# A shard says which boundary of the target each stored state is, so nothing has to be guessed:
# the draft's own boundaries are looked up in it. `stack` puts documents side by side as a draft
# reads them; here it is the longest one alone.

# %%
shards = open_shards(demo / "shards" / "unfamiliar.safetensors")
capture = choose_capture(loaded, shards)
document = max(read_documents(shards), key=lambda document: len(document.ids))
features = stack([document], slots=capture.slots)
print(f"stored are boundaries {shards.info.boundaries}")
print(f"the draft reads {capture.boundaries}, slots {capture.slots}")
print(f"{len(document.ids)} tokens, of which {document.answer.sum()} are the answer's")

# %% [markdown]
# `unroll` runs step k of every column at once: column t stands at position t + k, reads token
# t + 1 + k and guesses token t + 2 + k. `read` says what is wanted of each step; here all of it,
# the log-probabilities of the draft's 4,864 words. The text is the target's own greedy answer, so
# its tokens are the target's choice: that is what is due.

# %%
STEPS = 5
run = jax.jit(
    lambda params, features: unroll(
        draft.config,
        params,
        features.aux.astype(jnp.float32),
        features.embeddings.astype(jnp.float32),
        steps=STEPS,
        read=lambda _, step: jax.nn.log_softmax(project(step.head_input, draft.kernel)),
        valid=features.valid,
    )
)
logs = np.asarray(run(draft.params, features))[:, 0]  # [K,T,W]
due = np.stack([due_at(features.ids, k)[0] for k in range(STEPS)])  # [K,T], target ids
counted = np.stack([due_at(features.answer, k)[0] for k in range(STEPS)])
row = draft.vocab.draft_ids()[due]  # the draft's word for it, below 0 where it has none
said = draft.vocab.target_ids[logs.argmax(-1)]
right = (said == due) & counted
print(f"step 0: right at {right[0].sum()} of {counted[0].sum()} columns of the answer;")
print(f"at {(counted[0] & (row[0] < 0)).sum()} of them the draft has no word for what is due")

# %% [markdown]
# ## Top five, column by column
#
# The first columns of the answer. The tokenizer is the target's and does not ship, so tokens are
# ids. A star marks the one that is due.

# %%
columns = np.flatnonzero(counted[0])
print("column   due    the draft's five likeliest, with their probabilities")
for t in columns[:10]:
    best = np.argsort(-logs[0, t])[:5]
    ids, shares = draft.vocab.target_ids[best], np.exp(logs[0, t, best])
    told = (
        f"{i:>6}{'*' if i == due[0, t] else ' '} {p:5.1%}" for i, p in zip(ids, shares, strict=True)
    )
    print(f"{t:>6} {due[0, t]:>6}  {'  '.join(told)}")

# %% [markdown]
# ## How sure, and how right
#
# Entropy says how open the draft thinks the next token is. The probability of its first choice is a
# promise that can be checked: among the columns where it says 90%, nine of ten should be right.

# %%
entropy = -(np.exp(logs[0]) * logs[0]).sum(-1)[columns]
sure = np.exp(logs[0].max(-1))[columns]
hit = right[0, columns]
known = row[0, columns] >= 0

figure, (left, middle) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
edges = np.linspace(0, max(entropy.max(), 1e-3), 13)
left.hist([entropy[hit], entropy[~hit]], edges, stacked=True, color=[BLUE, ORANGE])
left.legend(["right", "wrong"], frameon=False)
left.set(xlabel="entropy of step 0, nats", ylabel="columns")
edges = np.array([0, 0.2, 0.4, 0.6, 0.8, 1.0])
place = np.digitize(sure, edges[1:-1])
held = [b for b in range(5) if (place == b).any()]
middle.plot([0, 1], [0, 1], color=PALE)
middle.plot(
    [sure[place == b].mean() for b in held],
    [hit[place == b].mean() for b in held],
    "o-",
    color=BLUE,
)
for b in held:
    spot = (sure[place == b].mean(), hit[place == b].mean())
    middle.annotate(f"{(place == b).sum()}", spot, (6, -10), textcoords="offset points", fontsize=9)
middle.set(xlabel="what the draft promises", ylabel="what it keeps", xlim=(0, 1), ylim=(0, 1.08))
for axes in (left, middle):
    axes.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# Left, the open columns are the wrong ones. Right, each dot is a bin of columns with their number
# beside it. Below the line a draft would promise more than it keeps; this one, on this answer,
# keeps more than it promises. One answer is a small sample.
#
# ## Sure and wrong
#
# The columns to look at first. Where the draft has no word for the due token no training could
# have made it right with this vocabulary, and it cannot even know that it is wrong.

# %%
worst = [i for i in np.argsort(-sure) if not hit[i]][:8]
print("column   said   sure    due    probability of the due token")
for i in worst:
    t = columns[i]
    given = f"{np.exp(logs[0, t, row[0, t]]):.2%}" if known[i] else "no word for it"
    print(f"{t:>6} {said[0, t]:>6} {sure[i]:6.1%} {due[0, t]:>6}    {given}")
print(f"\n{(~hit).sum()} wrong columns, {(~hit & ~known).sum()} of them without a word for it")

# %% [markdown]
# ## Chains against the text
#
# Each column starts a chain of five, read from the top. A server takes the tokens before the first
# wrong one, so what is right below a wrong one is worth nothing. The bars are what it would accept
# from each column.

# %%
joint = np.cumprod(right, axis=0).astype(bool)
cells = np.where(~counted, np.nan, np.where(joint, 2.0, np.where(right, 1.0, 0.0)))[:, columns]
figure, (above, below) = plt.subplots(
    2, 1, figsize=(9, 3.6), sharex=True, layout="constrained", height_ratios=[1, 1.3]
)
palette = plt.matplotlib.colors.ListedColormap([ORANGE, "#8fa9c6", BLUE])
mesh = above.pcolormesh(columns, np.arange(STEPS), cells, cmap=palette, vmin=-0.5, vmax=2.5)
above.set(ylabel="step k", yticks=range(STEPS))
above.invert_yaxis()
bar = figure.colorbar(mesh, ax=above, ticks=[0, 1, 2])
bar.ax.set_yticklabels(["wrong", "right, after a wrong one", "accepted"])
accepted = joint.sum(0)[columns]
below.bar(columns, accepted, width=1.0, color=BLUE)
below.axhline(accepted.mean(), color=ORANGE)
below.set(xlabel="column of the text", ylabel="accepted tokens", ylim=(0, STEPS))
below.spines[["top", "right"]].set_visible(False)
print(f"accepted per round, the mean over columns: {accepted.mean():.2f} of {STEPS}")
