"""A draft on the device, in a type of choice.

`converters.load_draft` gives what a file holds, in NumPy; `place_draft` makes of it what functions
of this package take.
"""

from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from eagle3_jax.config import DraftConfig
from eagle3_jax.model import head_kernel, require_shape
from eagle3_jax.vocab import VocabMap

Tree = TypeVar("Tree")


@runtime_checkable
class Loaded(Protocol):
    """What a draft is in memory, whoever read or trained it.

    Attributes:
        config: dimensions and knobs.
        params: the tree that `Drafter(config)` applies.
        vocab: the draft vocabulary.
        embeddings: `[V,D]`, the draft's own token table, or `None`.
    """

    @property
    def config(self) -> DraftConfig: ...  # noqa: D102
    @property
    def params(self) -> dict[str, Any]: ...  # noqa: D102
    @property
    def vocab(self) -> VocabMap: ...  # noqa: D102
    @property
    def embeddings(self) -> np.ndarray | None: ...  # noqa: D102


class Draft(NamedTuple):
    """A draft to compute with: the triple (config, params, vocab), and what a target may give it.

    Attributes:
        config: dimensions and knobs.
        params: the tree that `Drafter(config)` applies, on the device; its type is the precision.
        vocab: the draft vocabulary.
        kernel: `[D,W]`, the head.
        table: `[V,D]` token embeddings, on the host; `None`: those that documents store.
    """

    config: DraftConfig
    params: dict[str, Any]
    vocab: VocabMap
    kernel: Float[Array, "D W"]
    table: np.ndarray | None = None


def place_draft(
    draft: Loaded,
    dtype: DTypeLike = jnp.float32,
    *,
    table: np.ndarray | None = None,
    target_head: Float[Array, "D V"] | None = None,
) -> Draft:
    """Put a draft on the device.

    Args:
        draft: in memory.
        dtype: of parameters and head, and with them of all that is computed.
        table: `[V,D]`, the target's token embeddings, for a draft that has none of its own.
        target_head: the target's, for a draft that has none of its own.

    Raises:
        ValueError: when `dtype` is none of real numbers, the head is the embeddings' or the
            target's and those are not given, or a table or a head is of another shape.
    """
    if not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        raise ValueError(f"dtype is {jnp.dtype(dtype)}, expected one of real numbers like bfloat16")
    table = table if draft.embeddings is None else draft.embeddings
    if table is not None:
        due = (draft.config.vocab_size, draft.config.hidden_size)
        require_shape("the table of token embeddings", table, "[V,D]", due)
    embeddings = jnp.asarray(table) if draft.config.head == "tied" and table is not None else None
    params = cast(draft.params, dtype)
    kernel = cast(head_kernel(draft.config, params, embeddings, target_head), dtype)
    return Draft(draft.config, params, draft.vocab, kernel, table)


def cast(tree: Tree, dtype: DTypeLike) -> Tree:
    """A tree with its real numbers on the device and in a type; ids, masks and the like stay."""

    def one(leaf: Any) -> Any:
        real = isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(leaf, dtype) if real else leaf

    return jax.tree.map(one, tree)
