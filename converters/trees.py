"""Checkpoint tensors <-> parameter trees: one rule, no table.

layers.0.self_attn.q_proj.weight [out, in]  <->  layers_0 / self_attn / q_proj / kernel [in, out]
layers.0.input_layernorm.weight  [width]    <->  layers_0 / input_layernorm / scale
....bias                                    <->  ... / bias
"""

import re
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from converters.tensors import Tensor
from eagle3_jax.errors import InputError

_NUMBERED = re.compile(r"\.(\d+)(?=\.)")
_UNNUMBERED = re.compile(r"_(\d+)(?=/|$)")
FLOATS = {  # the types of weights, and how a config's `torch_dtype` names them
    np.dtype(ml_dtypes.bfloat16): "bfloat16",
    np.dtype(np.float16): "float16",
    np.dtype(np.float32): "float32",
}


def to_tree(tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    """Nest tensors with canonical names into a parameter tree.

    Raises:
        InputError: when a name does not end in weight or bias, or a weight is neither a vector
            nor a matrix.
    """
    tree: dict[str, Any] = {}
    for name, tensor in tensors.items():
        *folders, leaf, value = _place(name, tensor)
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[leaf] = value
    return tree


def to_tensors(tree: dict[str, Any]) -> dict[str, np.ndarray]:
    """Flatten a parameter tree into tensors with canonical names, `[out, in]` again."""
    tensors = {}
    for path, value in _leaves(tree):
        *folders, leaf = path
        name = ".".join(_UNNUMBERED.sub(r".\1", folder) for folder in folders)
        kind = "bias" if leaf == "bias" else "weight"
        array = np.asarray(value)
        tensors[f"{name}.{kind}"] = array.T if leaf == "kernel" else array
    return tensors


def require_shapes(
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, list[int]],
    where: str,
    origins: Mapping[str, str] | None = None,
) -> None:
    """Refuse missing, unknown and misshapen tensors, and types that are no weights.

    Args:
        tensors: under canonical names.
        expected: shape of every tensor that has to be there.
        where: the file or directory, for messages.
        origins: canonical name -> the name in the file, where they differ.

    Raises:
        InputError: at the first tensor that does not fit.
    """
    for name in sorted(expected.keys() - tensors.keys()):
        raise InputError(f"{where}: found no tensor {name}, expected one of {expected[name]}")
    for name, tensor in sorted(tensors.items()):
        told = _both_names(name, origins)
        if name not in expected:
            raise InputError(
                f"{where}: tensor {told} of {list(tensor.shape)} is unknown, expected none of that "
                "name"
            )
        if list(tensor.shape) != expected[name]:
            raise InputError(
                f"{where}: tensor {told} has shape {list(tensor.shape)}, expected {expected[name]}"
            )
        if tensor.dtype not in FLOATS:
            raise InputError(
                f"{where}: tensor {told} has type {tensor.dtype}, expected "
                f"{', '.join(FLOATS.values())} (quantised weights are not read)"
            )


def _both_names(name: str, origins: Mapping[str, str] | None) -> str:
    """A tensor's name in its file and, where it differs, the canonical one."""
    origin = name if origins is None else origins.get(name, name)
    return name if origin == name else f"{origin} ({name})"


def _place(name: str, tensor: np.ndarray) -> tuple[Any, ...]:
    *folders, kind = _NUMBERED.sub(r"_\1", name).split(".")
    if not folders or kind not in ("weight", "bias"):
        raise InputError(f"tensor {name}: expected a name that ends in .weight or .bias")
    if kind == "bias":
        return (*folders, "bias", tensor)
    if tensor.ndim == 1:
        return (*folders, "scale", tensor)
    if tensor.ndim == 2:
        return (*folders, "kernel", tensor.T)
    raise InputError(f"tensor {name}: found shape {list(tensor.shape)}, expected 1 or 2 axes")


def _leaves(tree: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    if not isinstance(tree, dict):
        return [(path, tree)]
    return [leaf for key, node in tree.items() for leaf in _leaves(node, (*path, key))]
