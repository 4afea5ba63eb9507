"""What the first stage that parts looks like: a plain suspicion, not a proof.

Everything before that stage agrees, so what lies between is at fault: a weight, a norm, a rotation,
a mask. The numbers themselves often say which: the same values in another order, one matrix's in
another's place, one factor for each channel, pairs that keep their length.
"""

from typing import NamedTuple

import numpy as np

_TELLS = {
    "token": "the two read other tokens: other texts, or one pairs a state with the token of its "
    "own position (step 0 reads x[t+1] beside the states at x[t])",
    "aux": "other target states: which layers are captured, or in which order, or another target",
    "fc_input": "aux is equal, what fc reads is not: a norm before fc that one applies and the "
    "other does not (norm_before_fc, fc_norm), its weights or its epsilon",
    "fc": "what fc reads is equal, its output is not: its weights or its bias, or the target's "
    "states in another order",
    "embedding": "the tokens are equal, their embeddings are not: the draft's own table against "
    "the target's, or a scaled embedding",
    "embedding_normed": "the embedding is equal, the normed one is not: input_layernorm's weights "
    "or epsilon",
    "hidden_normed": "the hidden half is equal, the normed one is not: hidden_norm's weights or "
    "epsilon, or double_norm",
    "input_normed": "the norm before attention: its weights or its epsilon, or the residual that "
    "it reads",
    "q_normed": "q is equal before its norm, not after: q_norm's weights or epsilon",
    "k_normed": "k is equal before its norm, not after: k_norm's weights or epsilon",
    "attention_out": "the mixed values are equal, o_proj's output is not: its weights or its bias",
    "residual": "attention's output is equal, the sum with the residual is not: "
    "norm_before_residual, or which half is carried",
    "residual_normed": "the residual is equal, the normed one is not: post_attention_layernorm's "
    "weights or epsilon",
    "gate": "the MLP's input is equal, gate is not: the fused matrix's split, or its bias",
    "up": "gate is equal, up is not: the fused matrix's split, or its bias",
    "mlp": "gate and up are equal, the MLP's output is not: the activation, or down_proj",
    "output": "the residual and the MLP's output are equal, their sum is not: which residual is "
    "added",
    "head_input": "the last layer's output is equal, what the head reads is not: the final norm, "
    "its weights or its epsilon, or a draft without one",
    "state": "what the head reads is equal, what the next step is fed is not: norm_output",
    "logits": "what the head reads is equal, the logits are not: whose rows the head has (the "
    "draft's own, the target's, its embeddings), or a scale",
    "logits_lse": "the logits that both keep are equal, all together are not: other rows of the "
    "head, or padding rows that count",
    "top_logits": "the logits that both keep are equal, the best ones are not: other rows of the "
    "head, or padding rows that count",
    "top_ids": "the best logits are equal, their ids are not: the order of the draft vocabulary",
}
_CROSSED = {"q": "kv", "k": "v", "v": "k", "gate": ("up",), "up": ("gate",)}
_ORDERED = {
    "aux": "the target's states",
    "fc_input": "the target's states",
    "logits": "the rows of the head",
}
Pair = tuple[np.ndarray, np.ndarray]
Pairs = dict[str, Pair]
_WINDOWED = ("q_rotated", "k_rotated", "scores_max", "scores_lse", "attention")


class Parting(NamedTuple):
    """The first stage at which two traces part, and what stands around it.

    Attributes:
        step: k.
        stage: its name.
        positions: `[n]`, of each column at this step.
        parted: indices of the columns that do not agree.
        equal: stages of this step that agree, before it.
        both: every stage of this step that both have, before it and after it: `[n, width]` of the
            first trace and of the second.
    """

    step: int
    stage: str
    positions: np.ndarray
    parted: np.ndarray
    equal: set[str]
    both: dict[str, Pair]


def suspect(parting: Parting, tolerance: float, head_dim: int | None) -> str:
    """What a parting looks like.

    Args:
        parting: where two traces part first.
        tolerance: of the comparison.
        head_dim: of the attention, where it is known.
    """
    layer, _, stage = parting.stage.rpartition(".")
    prefix = f"{layer}." if layer else ""
    near = {
        name.removeprefix(prefix): pair
        for name, pair in parting.both.items()
        if name.startswith(prefix) and pair[0].shape == pair[1].shape
    }
    equal = {name.removeprefix(prefix) for name in parting.equal if name.startswith(prefix)}
    clue = (
        _shift(stage, near, parting.step)
        or _crossed(stage, near, tolerance)
        or _swapped_norms(stage, near, tolerance)
        or _other_order(stage, near, tolerance)
        or _other_weights(stage, near, tolerance)
    )
    told = clue or _by_stage(parting, stage, near, equal, tolerance, head_dim)
    first = _first_position(parting)
    if first is not None:
        told += f"; equal at positions below {first} only"
        # A column without earlier keys agrees whatever is wrong with the rest.
        if stage in _WINDOWED and parting.positions.min() + 1 < first:
            told += ": sliding window or rope scaling"
    return told


def _by_stage(
    parting: Parting,
    stage: str,
    near: Pairs,
    equal: set[str],
    tolerance: float,
    head_dim: int | None,
) -> str:
    match stage:
        case "token" if parting.step:
            return (
                "the same states, other tokens: one goes on with the text's tokens and the other "
                "with its own (trace --tokens), or d2t is read otherwise"
            )
        case "hidden" if parting.step:
            return (
                "the step before is equal, what this one is fed is not: norm_output (the raw "
                "state against the normed one)"
            )
        case "hidden":
            return "fc is equal, what the layer reads is not: something lies between the two"
        case "q" | "k" | "v":
            return _projection(stage, equal, near, tolerance)
        case "q_rotated" | "k_rotated":
            return _rotation(parting, stage, near, head_dim, tolerance)
        case "scores_max" | "scores_lse":
            return (
                "q and k are equal after RoPE, their scores are not: the scale, the mask, or keys "
                "that the cache has lost"
            )
        case "attention" if "scores_lse" in equal:
            return (
                "the scores are equal, the mixed values are not: which key head a query head "
                "reads, or the values in the cache"
            )
        case "attention":
            return (
                "q, k and v are equal, the mixed values are not, and one trace has no stage "
                "between: RoPE (theta, scaling, pairing), the scale, or the mask"
            )
    return _TELLS[stage]


def _projection(stage: str, equal: set[str], near: Pairs, tolerance: float) -> str:
    agree = [name for name in "qkv" if name in near and _same(*near[name], tolerance)]
    if agree:
        verb = "is" if len(agree) == 1 else "are"
        names = " and ".join(agree)
        return f"{names} {verb} equal, {stage} is not: the fused matrix's split, or a bias"
    if equal & {"hidden_normed", "input_normed"}:
        return (
            "the normed halves are equal, q, k and v are not: the order of the halves (the "
            "embedding's comes first), or their weights or biases"
        )
    return (
        "neither q, k nor v is equal, and what they read was not recorded: the norms, or the order "
        "of the halves (the embedding's comes first)"
    )


def _rotation(
    parting: Parting, stage: str, near: Pairs, head_dim: int | None, tolerance: float
) -> str:
    told = f"{stage[0]} is equal before RoPE, not after: "
    one, other = near[stage]
    if head_dim is None or head_dim % 2 or one.shape[1] % head_dim:
        return told + "theta, scaling or pairing"
    if not _same(_pair_lengths(one, head_dim), _pair_lengths(other, head_dim), 4 * tolerance):
        return told + (
            "pairing of dimensions (halves or neighbours), how many of them turn, or the scaling's "
            "magnitude (pairs change their length)"
        )
    if 0 in parting.positions[parting.parted]:
        return told + "positions (pairs keep their length, and position 0 is turned)"
    return told + "theta or scaling (pairs keep their length)"


def _pair_lengths(heads: np.ndarray, head_dim: int) -> np.ndarray:
    """Of dimensions i and i + H/2 of each head, which RoPE turns together."""
    apart = heads.astype(np.float64).reshape(len(heads), -1, 2, head_dim // 2)
    return np.linalg.norm(apart, axis=2).reshape(len(heads), -1)


def _shift(stage: str, near: Pairs, step: int) -> str:
    """The same text, counted from another position."""
    if stage != "token" or step or len(near[stage][0]) < 3:
        return ""
    one, other = (part[:, 0] for part in near[stage])
    if not (np.array_equal(one[1:], other[:-1]) or np.array_equal(one[:-1], other[1:])):
        return ""
    return (
        "the same text, one position apart: positions count from 1 in one of the two (as "
        "speculators' trainer has it), or one pairs a state with the token of its own position"
    )


def _other_order(stage: str, near: Pairs, tolerance: float) -> str:
    """The same numbers of each column, in another order."""
    one, other = near[stage]
    if one.shape[1] < 2 or one.dtype.kind in "iu":
        return ""
    if not _same(np.sort(one, axis=1), np.sort(other, axis=1), tolerance):
        return ""
    what = _ORDERED.get(stage, "heads or rows of the matrix")
    return f"{stage} has the same numbers in another order: {what} are permuted"


def _crossed(stage: str, near: Pairs, tolerance: float) -> str:
    """One matrix's numbers in another's place."""
    for name in _CROSSED.get(stage, ()):
        if name in near and _same(near[stage][0], near[name][1], tolerance):
            return f"{stage} of one is {name} of the other: the fused matrix is split otherwise"
    return ""


def _swapped_norms(stage: str, near: Pairs, tolerance: float) -> str:
    """Each half normed with the other's weights: the products of the halves stay what they are."""
    if stage != "embedding_normed" or "hidden_normed" not in near:
        return ""
    (a, b), (c, d) = near[stage], near["hidden_normed"]
    if not _same(a.astype(np.float64) * c, b.astype(np.float64) * d, 4 * tolerance):
        return ""
    return "the weights of input_layernorm and hidden_norm are swapped"


def _other_weights(stage: str, near: Pairs, tolerance: float) -> str:
    """A norm whose weights alone differ: one factor for each channel, at all columns."""
    if not stage.endswith("_normed") and stage != "head_input":
        return ""
    one, other = (part.astype(np.float64) for part in near[stage])
    small = np.abs(one) < 1e-2 * np.abs(one).max()  # quotients of small numbers say nothing
    if len(one) < 3 or small.all(axis=0).any():
        return ""
    factors = np.where(small, np.nan, other / np.where(small, 1.0, one))
    usual = np.nanmedian(factors, axis=0)
    if np.nanmax(np.abs(factors - usual)) > 1e3 * tolerance * np.abs(usual).max():
        return ""
    what, _, _ = _TELLS[stage].partition(": ")
    return f"{what}: only its weights differ, by one factor for each channel"


def _first_position(parting: Parting) -> int | None:
    """The position from which on nearly all part, where all before it agree; `None` else."""
    start = int(parting.positions[parting.parted].min())
    beyond = parting.positions >= start
    if beyond.all() or len(parting.parted) < 0.9 * beyond.sum():
        return None
    return start


def _same(one: np.ndarray, other: np.ndarray, tolerance: float) -> bool:
    if one.shape != other.shape:
        return False
    one, other = one.astype(np.float64), other.astype(np.float64)
    return bool(np.abs(one - other).max() <= tolerance * max(np.abs(one).max(), 1e-300))
