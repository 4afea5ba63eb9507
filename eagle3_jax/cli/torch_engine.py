"""States of any causal language model, by way of transformers: the `torch` extra.

    boundary b < L: hidden_states[b]        boundary L: what the last layer hands to the final norm

The last of transformers' `hidden_states` is *after* the final norm, so the last layer is heard
instead. The functions answer as those of `eagle3_jax.record` do.
"""

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from eagle3_jax.errors import InputError
from eagle3_jax.record import Recorded

_UNREAD = "transformers reads no causal language model there"


class TorchTarget(NamedTuple):
    """A target that transformers runs.

    Attributes:
        model: a causal language model.
        last_layer: the module that makes boundary L.
        num_layers: L.
        directory: where from, for messages.
    """

    model: Any
    last_layer: Any
    num_layers: int
    directory: Path


class Outline(NamedTuple):
    """What a config says of a target.

    Attributes:
        vocab_size: V.
        num_layers: L.
        max_positions: its longest context, where the config says.
    """

    vocab_size: int
    num_layers: int
    max_positions: int | None


def require_extra(why: str) -> None:
    """Refuse to go on without torch and transformers.

    Raises:
        InputError: when one of them is not installed; says `why` they are needed.
    """
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"{why}, but {' and '.join(missing)} cannot be imported, expected: "
            "pip install 'eagle3-jax[torch]'"
        )


def read_outline(directory: Path) -> Outline:
    """A target's sizes by its config alone.

    Raises:
        InputError: when transformers knows no such family, or its config names no sizes.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(directory).get_text_config()
        longest = getattr(config, "max_position_embeddings", None)
        return Outline(config.vocab_size, config.num_hidden_layers, longest)
    except (ValueError, AttributeError) as error:
        raise InputError(f"{directory}: {_UNREAD}: {error}") from None


def load(directory: Path, compute: str) -> TorchTarget:
    """A whole target, on the GPU where there is one.

    Args:
        directory: as transformers reads it.
        compute: the precision of its weights, or `stored`.

    Raises:
        InputError: when it is no causal language model, a weight is missing, or its layers are not
            found.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    dtype = "auto" if compute == "stored" else compute
    try:
        model, told = AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, output_loading_info=True
        )
    except (ValueError, RuntimeError) as error:  # another family; tensors of other shapes
        raise InputError(f"{directory}: {_UNREAD}: {error}") from None
    if told["missing_keys"]:  # which transformers fills with noise
        raise InputError(
            f"{directory}: found no tensors {', '.join(sorted(told['missing_keys']))}, expected "
            f"all of {type(model).__name__}"
        )
    model.generation_config = GenerationConfig()  # plain greedy: no penalties out of a file
    layers = model.config.get_text_config().num_hidden_layers
    lists = (part for part in model.base_model.modules() if isinstance(part, torch.nn.ModuleList))
    stacks = [part for part in lists if len(part) == layers]
    if len(stacks) != 1:
        raise InputError(
            f"{directory}: {type(model).__name__} has {len(stacks)} lists of {layers} modules, "
            "expected one, its layers"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return TorchTarget(model.eval().to(device), stacks[0][-1], layers, directory)


def compute_type(target: TorchTarget) -> str:
    """The precision of a target's weights, as NumPy calls it."""
    return str(target.model.dtype).removeprefix("torch.")


def tensors_of(target: TorchTarget) -> dict[str, np.ndarray]:
    """Every tensor of a target, on the host."""
    return {name: _array(tensor) for name, tensor in target.model.state_dict().items()}


def embedding_table(target: TorchTarget) -> np.ndarray:
    """The rows that tokens look up, `[V,Dt]`; some families scale them on the way to boundary 0."""
    return _array(target.model.get_input_embeddings().weight.detach())


def read_texts(
    target: TorchTarget,
    texts: Sequence[np.ndarray],
    *,
    boundaries: tuple[int, ...],
    dtype: str,
    columns: int,
) -> Iterator[Recorded]:
    """Run a target over texts, the longest first.

    Args:
        target: the target.
        texts: `[T]` int32 each, none empty.
        boundaries: states to record beside boundary L.
        dtype: of the recorded states.
        columns: tokens of a batch, about, padding included; at least one text.

    Yields:
        The texts, each once, in the order in which they were read.

    Raises:
        InputError: when the model's states are not one for each boundary.
    """
    order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
    while order:
        count = max(columns // len(texts[order[0]]), 1)
        numbers, order = order[:count], order[count:]
        states = _states(target, [texts[number] for number in numbers], boundaries, dtype)
        for row, number in enumerate(numbers):
            yield Recorded(number, texts[number], states[row, : len(texts[number])].copy())


def answer_prompts(
    target: TorchTarget,
    prompts: Sequence[np.ndarray],
    *,
    max_new: int,
    longest: int,
    end_ids: tuple[int, ...],
    boundaries: tuple[int, ...],
    dtype: str,
    columns: int,
    rows: int,
) -> Iterator[Recorded]:
    """Answer prompts greedily, then read prompts and answers for their states.

    Args:
        target: the target.
        prompts: `[P]` int32 each, none empty, all shorter than `longest`.
        max_new: most tokens of an answer, its end token included.
        longest: most tokens of prompt and answer.
        end_ids: tokens that end an answer.
        boundaries: states to record beside boundary L.
        dtype: of the recorded states.
        columns: tokens that are read together.
        rows: prompts that are answered together.

    Yields:
        Prompts with their answers, each once.
    """
    order = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]))
    for start in range(0, len(order), rows):
        numbers = order[start : start + rows]
        given = [prompts[number] for number in numbers]
        texts = []
        for prompt, said in zip(given, _answers(target, given, max_new, end_ids), strict=True):
            answer = said[: longest - len(prompt)]
            ends = np.flatnonzero(np.isin(answer, end_ids))
            answer = answer[: ends[0] + 1] if len(ends) else answer
            texts.append(np.concatenate([prompt, answer]))
        read = read_texts(target, texts, boundaries=boundaries, dtype=dtype, columns=columns)
        for recorded in read:
            yield recorded._replace(number=numbers[recorded.number])


def _states(
    target: TorchTarget, texts: list[np.ndarray], boundaries: tuple[int, ...], dtype: str
) -> np.ndarray:
    """States of some texts, `[B,T,A+1,Dt]`; padding stands on the right, where nobody sees it."""
    import torch

    ids, mask = _padded(target, texts, left=False)
    heard: list[Any] = []
    ear = target.last_layer.register_forward_hook(lambda _layer, _given, said: heard.append(said))
    try:
        with torch.inference_mode():
            said = target.model.base_model(
                input_ids=ids, attention_mask=mask, output_hidden_states=True, use_cache=False
            )
    finally:
        ear.remove()
    states = said.hidden_states
    if len(states) != target.num_layers + 1 or len(heard) != 1:
        raise InputError(
            f"{target.directory}: {type(target.model).__name__} gives {len(states)} hidden states "
            f"and calls its last layer {len(heard)} times, expected {target.num_layers + 1} and 1"
        )
    last = heard[0][0] if isinstance(heard[0], tuple) else heard[0]
    chosen = [*(states[boundary] for boundary in boundaries), last]
    return _array(torch.stack([part.to(getattr(torch, dtype)) for part in chosen], dim=2))


def _answers(
    target: TorchTarget, prompts: list[np.ndarray], max_new: int, end_ids: tuple[int, ...]
) -> np.ndarray:
    """Greedy continuations, `[B,N]`; what follows an end token is padding."""
    import torch

    ids, mask = _padded(target, prompts, left=True)
    with torch.inference_mode():
        grown = target.model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max_new,
            do_sample=False,
            eos_token_id=list(end_ids),
            pad_token_id=end_ids[0],
        )
    return _array(grown[:, ids.shape[1] :]).astype(np.int32)


def _padded(target: TorchTarget, texts: list[np.ndarray], *, left: bool) -> tuple[Any, Any]:
    """Texts as one tensor, and a mask that is 0 on padding."""
    import torch

    width = max(map(len, texts))
    ids, mask = (np.zeros((len(texts), width), np.int64) for _ in range(2))
    for row, text in enumerate(texts):
        place = slice(width - len(text), width) if left else slice(len(text))
        ids[row, place], mask[row, place] = text, 1
    device = target.model.device
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)


def _array(tensor: Any) -> np.ndarray:
    """A tensor as NumPy has it, bfloat16 too."""
    import torch

    there = tensor.cpu().contiguous()
    if there.dtype == torch.bfloat16:
        return there.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return there.numpy()
