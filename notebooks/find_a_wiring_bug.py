# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Finding a wiring bug
#
# A draft that trained well serves at little more than one token per round. Nothing crashed, every
# shape is right. This notebook makes that happen on real data, finds the fault by hand, and then
# lets the tool find it.
#
# The shards hold four states of each token, and the draft was trained on the first three. The
# server of this story hands over the last three.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import eagle3_jax
from converters import load_draft, open_draft, open_shards, read_documents, serve_all
from eagle3_jax import diagnose_draft, evaluate_documents, figures, place_draft
from eagle3_jax.diagnose import readings, serving, slots
from eagle3_jax.diagnose.cases import score
from eagle3_jax.diagnose.draft import name_places

demo = Path(eagle3_jax.__file__).parent / "demo"
loaded = load_draft(demo / "draft")
draft = place_draft(loaded)
shards = open_shards(demo / "shards" / "familiar.safetensors")
documents, stored = list(read_documents(shards)), shards.info.boundaries
TRAINED, SERVED = (0, 1, 2), (1, 2, 3)
print(f"stored are boundaries {stored}, {len(documents)} documents; the draft: {loaded.boundaries}")

# %% [markdown]
# ## The symptom

# %%
for name, wired in {"trained": TRAINED, "served": SERVED}.items():
    found = figures(evaluate_documents(draft, documents, slots=wired, steps=3))
    first = found["steps"][0]["joint"]
    print(f"{name:>8}: first token {first:.1%} right, {found['tokens_per_round']:.2f} per round")

# %% [markdown]
# ## By hand: norms suggest
#
# The first idea is to look at how large the states are: the median norm, and where nine of ten lie.
# They grow from boundary to boundary, so the order of norms can hint at an order of states.

# %%
norms = np.concatenate(
    [np.linalg.norm(d.states[1:].astype(np.float32), axis=-1) for d in documents]
)
for slot, boundary in enumerate(stored):
    low, middle, high = np.quantile(norms[:, slot], (0.05, 0.5, 0.95))
    print(f"slot {slot}, boundary {boundary:>2}: median {middle:.0f}, {low:.0f} to {high:.0f}")

# %% [markdown]
# But nobody serving sees this table with its labels. They see three growing norms, which is just
# what they would see with the right three. A small first norm proves nothing either: it has been
# taken for the embedding's before, and was a layer's output.
#
# ## By hand: equality proves
#
# So take one prompt, store what training stored and what the server hands over, and ask of every
# pair of slots: at how many tokens are the two the same numbers, bit for bit?

# %%
training = documents[0]
served = training._replace(states=training.states[:, SERVED])  # the dump of our faulty server
same = (served.states[:, :, None] == training.states[:, None]).all(-1).sum(0)

figure, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
axes.imshow(
    same, cmap=plt.matplotlib.colors.LinearSegmentedColormap.from_list("", ["w", "#17457a"])
)
for (row, column), count in np.ndenumerate(same):
    axes.text(column, row, count, ha="center", va="center", color="w" if count else "#555555")
axes.set_xticks(range(4), [f"slot {slot}" for slot in range(4)])
axes.set_yticks(range(3), [f"served {slot}" for slot in range(3)])
axes.set_title(f"equal tokens of {len(training.ids)}", fontsize=10)
axes.spines[:].set_visible(False)
axes.tick_params(length=0)

# %% [markdown]
# Every token, in one cell of each row, and none elsewhere: served slot 0 *is* training slot 1.
# That is the whole diagnosis, and it did not need a model.
#
# ## By the tool, from two dumps
#
# `serving.match` asks the same, and also whether states are moved by a token, went through a norm
# or were rounded on the way. `eagle3-jax diagnose --serving` prints what it finds.

# %%
for finding in serving.match(training, served).findings:
    print(f"{finding.strength}: {finding.claim}\n    {finding.evidence}")

# %% [markdown]
# ## By the tool, from the stored states alone
#
# `examine_slots` says what each stored state is. What it proves, measures or only suggests is kept
# apart. Here it can prove that no slot is the token's embedding, since the shards store that too.

# %%
examined = slots.examine_slots(documents, stated=stored)
for finding in examined.findings:
    print(f"{finding.strength}: {finding.claim}")
print("against the shard itself:", [finding.claim for finding in examined.suspicions] or "nothing")

# %% [markdown]
# ## By the tool, from the draft's own behaviour
#
# No dump of the server at hand? Then the draft is the instrument: it does best when it is wired as
# it was trained. `search` starts from the reading that we are told, the wrong one, and tries other
# states, orders, pairings, norms, residuals, rotations and vocabularies. Some documents find
# candidates, others decide between them. `diagnose_draft` does it all, and looks at the slots, too.

# %%
found = diagnose_draft(draft, documents, slots=SERVED, stated=stored)
told, tried = found.verdict, found.searched
print(f"{told.kind}, of {tried.found.compared} readings tried:\n{told.told}")

# %% [markdown]
# The search in one picture: three of five places, in stored order or another, each a reading of
# the same draft on the same texts; in blue as it was trained, in orange as it is served. They are
# arrays of one compiled program, so each costs a moment.

# %%
places = name_places(draft.config, len(stored), stored)
options = readings.state_axis(SERVED, len(places), places).options
wired = {option.slots: readings.change(tried.case, (option,)) for option in options}
wired |= {SERVED: tried.case}
scored = {slots: score(tried.setting, case, tried.data.second) for slots, case in wired.items()}
lengths = {slots: one.accepted() + 1 for slots, one in scored.items()}
ranked = sorted(lengths, key=lengths.get)

figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
known = {TRAINED: "#17457a", SERVED: "#f0a24e"}
drawn = axes.barh(
    [", ".join("embedding" if s == 4 else str(stored[s]) for s in slots) for slots in ranked],
    [lengths[slots] for slots in ranked],
    color=[known.get(slots, "#b9c7d8") for slots in ranked],
)
axes.bar_label(drawn, fmt="%.2f", padding=4, fontsize=9)
axes.tick_params(labelsize=9, length=0)
axes.set(xlabel="tokens per round", ylabel="boundaries that feed the draft")
axes.spines[["top", "right", "left"]].set_visible(False)

# %% [markdown]
# ## Who would serve it how
#
# The config of a draft does not mean the same everywhere. `serve_all` reads it as each engine
# would, beside a target of this depth and class, and tells what would differ from training.

# %%
opened = open_draft(demo / "draft")
for one in serve_all(demo / "draft", opened, target_layers=30, target_class="llama"):
    differs = "; ".join(one.differences) or "as trained"
    refused = f"refuses it: {one.refused}"
    print(f"{one.engine}: {refused if one.refused else f'captures {one.boundaries}; {differs}'}")
