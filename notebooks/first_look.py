# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # A first look at a draft
#
# The shipped draft of SmolLM2-135M-Instruct in plain JAX: load it, run five steps from every
# column of one held-out answer, and see where it is right. A draft is a triple (config, params,
# vocabulary); everything below is a pure function of it.

# %%
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import eagle3_jax
from converters.drafts import load_draft
from converters.shards import read_documents, read_info
from eagle3_jax.batches import stack
from eagle3_jax.model import head_kernel
from eagle3_jax.ops import due_at
from eagle3_jax.rollout import greedy_ids, unroll

demo = Path(eagle3_jax.__file__).parent / "demo"
draft = load_draft(demo / "draft")
params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), draft.params)
kernel = head_kernel(draft.config, params)
target_ids = jnp.asarray(draft.vocab.target_ids)
draft.config

# %% [markdown]
# A shard says which boundary of the target each stored state is, so nothing has to be guessed:
# the draft's own boundaries are looked up in it.

# %%
shard = demo / "shards" / "familiar.safetensors"
info = read_info(shard)
slots = tuple(info.boundaries.index(boundary) for boundary in draft.boundaries or ())
documents = list(read_documents(shard))
longest = max(documents, key=lambda document: len(document.ids))
features = stack([longest], slots=slots, table=None, length=len(longest.ids), rows=1)
info.boundaries, slots, features.aux.shape

# %% [markdown]
# `unroll` runs step k of every column at once: column t stands at position t + k and reads token
# t + 1 + k. `read` says what is wanted of each step; here the draft's first choice.

# %%
STEPS = 5


@jax.jit
def predict(params, features):
    return unroll(
        draft.config,
        params,
        features.aux.astype(jnp.float32),
        features.embeddings.astype(jnp.float32),
        steps=STEPS,
        read=lambda _, step: greedy_ids(step.head_input, kernel, target_ids),
        valid=features.valid,
    )


predicted = np.asarray(predict(params, features))[:, 0]
due = np.stack([due_at(features.ids, k)[0] for k in range(STEPS)])
answer = np.stack([due_at(features.answer, k)[0] for k in range(STEPS)])
accepted = np.cumprod((predicted == due) & answer, axis=0).sum(axis=0)[answer[0]]
print(f"accepted per round on this answer: {accepted.mean():.2f}; at most {accepted.max()}")

# %% [markdown]
# How many of the draft's five tokens a server would accept, from each column of the answer.

# %%
figure = Figure(figsize=(9, 2.6), layout="constrained")
axes = figure.subplots()
axes.bar(np.arange(len(accepted)), accepted, width=1.0, color="0.35")
axes.set(xlabel="column of the answer", ylabel="accepted tokens", ylim=(0, STEPS))
axes.spines[["top", "right"]].set_visible(False)
figure
