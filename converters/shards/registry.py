"""Every layout of shards, and which of them a file has: told by keys, then by widths.

Keys collide: `hidden_states` are A states side by side in AngelSlim, one state in TorchSpec and
ModelOpt, a list in speculators v1; `hidden_state` is the last state in SpecForge, the aux states
in speculators v0. Where neither keys nor widths decide, the user has to.
"""

from typing import Any

from converters.files import read_json
from converters.shards import arrow, native, nemo
from converters.shards.base import OWN, Content, Hints, Layout, LayoutError, Shape, ShardInfo
from converters.shards.packing import require_apart
from converters.shards.readings import Listed, Stacked, Wide
from eagle3_jax.errors import InputError

_CONFIG = "data_config.json"
_PRENORM = "hidden_states_prenorm"
_MASK = "loss_mask"
_NO_MASK = "no loss mask is stored: every token counts as one of the answer"
_UNSAID = "the files do not say whether the last state is before or after the final norm"


def _has_data_set(content: Content, _: Hints) -> bool:
    return arrow.has_row(content.path)


def _has_none(content: Content, _: Hints) -> bool:
    return not arrow.has_row(content.path)


def _data_config(content: Content) -> dict[str, Any] | None:
    path = content.path.with_name(_CONFIG)
    return read_json(path) if path.exists() else None


def _is_v1(content: Content, hints: Hints) -> bool | None:
    """Whether a file with a list of states is speculators'; `None` where nothing tells."""
    states = content.values["hidden_states"]
    ranks = {len(getattr(state, "shape", ())) for state in states} if _is_list(states) else set()
    if _MASK not in content.values or ranks != {2}:
        return False
    if _data_config(content) is not None:
        return True
    if hints.num_aux is not None and len(states) != hints.num_aux + 1:
        return False
    return None


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _may_be_v1(content: Content, hints: Hints) -> bool:
    return _is_v1(content, hints) is not False


def _may_be_raw(content: Content, hints: Hints) -> bool:
    return _is_v1(content, hints) is not True


def _v1_info(content: Content, info: ShardInfo) -> ShardInfo:
    """What data_config.json says; its ids number the layers whose output was stored."""
    config = _data_config(content)
    if config is None:
        return info
    path, (states, model) = (
        content.path.with_name(_CONFIG),
        (config.get(key) or {} for key in ("hidden_states", "model")),
    )
    ids = states.get("layer_ids") if isinstance(states, dict) else None
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise InputError(f"{path}: layer_ids is {ids!r}, expected a list of integers")
    count = len(content.values["hidden_states"])
    if len(ids) != count:
        raise InputError(f"{path}: layer_ids is {ids}, expected {count} as {content.path} stores")
    target = model.get("target_model_path") if isinstance(model, dict) else None
    boundaries = nemo.output_boundaries(path, "layer_ids", ids)
    return info._replace(boundaries=boundaries, target=target)


def _modelopt_info(content: Content, info: ShardInfo) -> ShardInfo:
    """A flag of newer dumps says where the last state was taken; silence says nothing."""
    flag = content.values.get(_PRENORM)
    if flag is None:
        return info
    if not isinstance(flag, bool):
        raise InputError(f"{content.path}: {_PRENORM} is {flag!r}, expected True or False")
    notes = {key: note for key, note in info.notes.items() if key != "last_state"}
    return info._replace(last_state="pre_norm" if flag else "post_norm", notes=notes)


LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(
            name=OWN,
            title="this project's own",
            source="converters/shards/native.py",
            keys=frozenset(native.KEYS),
            reading=native.Native(),
            last_state=None,
            info=native.header_info,
        ),
        Layout(
            name="specforge",
            title="SpecForge's hidden states, .ckpt or .ckpt.gz",
            source="SpecForge scripts/prepare_hidden_states.py",
            keys=frozenset({"input_ids", "loss_mask", "aux_hidden_state", "hidden_state"}),
            reading=Wide(aux="aux_hidden_state", last="hidden_state"),
            last_state="post_norm",
        ),
        Layout(
            name="angelslim",
            title="AngelSlim's hidden states, .ckpt",
            source="AngelSlim tools/generate_hidden_for_draft_model.py",
            keys=frozenset({"input_ids", "loss_mask", "hidden_states", "target_hiddens"}),
            reading=Wide(aux="hidden_states", last="target_hiddens", embeddings="inputs_embeds"),
            last_state="post_norm",
            besides=frozenset({"position_ids"}),  # [3,T], of targets that see pictures
        ),
        Layout(
            name="torchspec",
            title="TorchSpec's offline samples, .ckpt",
            source="TorchSpec's offline reader",
            keys=frozenset({"input_ids", "loss_mask", "aux_hidden_states", "hidden_states"}),
            never=frozenset({"conversation_id"}),
            reading=Wide(aux="aux_hidden_states", last="hidden_states"),
            last_state=None,
            notes={"last_state": _UNSAID},
        ),
        Layout(
            name="modelopt",
            title="ModelOpt's dumps, with Hugging Face, TensorRT-LLM or vLLM, .pt",
            source="ModelOpt examples/speculative_decoding/collect_hidden_states",
            keys=frozenset({"input_ids", "conversation_id", "aux_hidden_states", "hidden_states"}),
            reading=Wide(aux="aux_hidden_states", last="hidden_states"),
            last_state=None,
            info=_modelopt_info,
            notes={
                "last_state": f"{_UNSAID}: after in dumps with Hugging Face, before with vLLM",
                "boundaries": "dumps with vLLM take the default states one layer early",
            },
        ),
        Layout(
            name="speculators-v0",
            title="speculators' research data, .pt",
            source="speculators train/data.py, standardize_data_v0",
            keys=frozenset({"input_ids", "loss_mask", "hidden_state", "target"}),
            reading=Wide(aux="hidden_state", last="target"),
            last_state="post_norm",
        ),
        Layout(
            name="speculators-v1",
            title=f"speculators' data_N.pt beside {_CONFIG}",
            source="speculators train/data.py, standardize_data_v1",
            keys=frozenset({"input_ids", "loss_mask", "hidden_states"}),
            never=frozenset({"aux_hidden_states", "target_hiddens", "document_lengths"}),
            told=_may_be_v1,
            reading=Listed(),
            last_state="pre_norm",
            info=_v1_info,
        ),
        Layout(
            name="speculators",
            title="speculators' data set with hidden_states/hs_N.safetensors",
            source="speculators train/data.py, ArrowDataset",
            keys=frozenset({"hidden_states", "token_ids"}),
            told=_has_data_set,
            reading=arrow.Joined(),
            last_state="pre_norm",
            mask_elsewhere=True,
        ),
        Layout(
            name="vllm",
            title="what vLLM's extract_hidden_states writes, .safetensors",
            source="vLLM's hidden states connector",
            keys=frozenset({"hidden_states", "token_ids"}),
            told=_has_none,
            reading=Stacked(),
            last_state=None,
            notes={
                "last_state": "the files do not say whether the last state stored is the target's "
                "last one (then it is before the final norm)",
            },
        ),
        Layout(
            name="nemo",
            title="NeMo AutoModel's cache, manifest.json and shard-N.safetensors",
            source="NeMo AutoModel components/datasets/llm/eagle3_cache.py",
            keys=frozenset(nemo.KEYS),
            never=frozenset({"hidden_states"}),
            reading=nemo.Cache(),
            last_state="absent",
            info=nemo.manifest_info,
            notes={"input_ids": "the first token of each document is not stored, 0 stands for it"},
        ),
        Layout(
            name="states",
            title="a list or stack of states, as Hugging Face's output_hidden_states",
            source="transformers' output_hidden_states",
            keys=frozenset({"input_ids", "hidden_states"}),
            never=frozenset(
                {"aux_hidden_states", "target_hiddens", "document_lengths", "conversation_id"}
            ),
            told=_may_be_raw,
            reading=Listed(),
            last_state=None,
            notes={
                "last_state": _UNSAID,
                "boundaries": "the files do not say which states these are; output_hidden_states "
                "are boundaries 0 to L, the last one after the final norm",
            },
        ),
    )
}


def layout_named(name: str) -> Layout:
    """A layout by its name.

    Raises:
        LayoutError: when there is none of that name.
    """
    if name not in LAYOUTS:
        raise LayoutError(f"--layout is {name!r}, expected one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def find_layout(content: Content, hints: Hints) -> tuple[Layout, Shape]:
    """The one layout that a file has, and what its header says.

    Raises:
        LayoutError: when its keys are no layout's, several layouts fit, or documents are packed.
        InputError: when it is broken.
    """
    found = content.values.keys()
    known = [
        layout
        for layout in LAYOUTS.values()
        if layout.keys <= found
        and not layout.never & found
        and (layout.told is None or layout.told(content, hints))
    ]
    if not known:
        expected = "; ".join(
            f"{layout.name} ({', '.join(sorted(layout.keys))})" for layout in LAYOUTS.values()
        )
        raise LayoutError(
            f"{content.path}: found {_keys(content)}, which no layout of shards has, expected one "
            f"of {expected}"
        )
    require_apart(content.path, found - frozenset().union(*(layout.besides for layout in known)))
    if len(known) == 1:
        return known[0], known[0].reading.shape(content, hints)
    fits, faults = [], []
    for layout in known:
        try:
            fits.append((layout, layout.reading.shape(content, hints)))
        except InputError as error:
            faults.append(f"{layout.name}: {str(error).removeprefix(f'{content.path}: ')}")
    if not fits:
        raise InputError(f"{content.path}: fits no layout that has its keys; {'; '.join(faults)}")
    if len(fits) > 1 and hints.num_aux is not None:
        fits = [fit for fit in fits if fit[1].states == hints.num_aux + 1] or fits
    if len(fits) > 1:
        names = " and ".join(layout.name for layout, _ in fits)
        raise LayoutError(
            f"{content.path}: found {_keys(content)}, which layouts {names} have, expected "
            "--layout with one of them"
        )
    return fits[0]


def check_layout(content: Content, layout: Layout, hints: Hints) -> Shape:
    """What the header of a file says that should have a certain layout.

    Raises:
        LayoutError: when it lacks one of its keys, or documents are packed.
        InputError: when it is broken.
    """
    if not layout.keys <= content.values.keys():
        raise LayoutError(
            f"{content.path}: found {_keys(content)}, expected {', '.join(sorted(layout.keys))} "
            f"of layout {layout.name}"
        )
    require_apart(content.path, content.values.keys() - layout.besides)
    return layout.reading.shape(content, hints)


def describe(content: Content, layout: Layout) -> ShardInfo:
    """What the states of a file are.

    Raises:
        InputError: when a file beside it, or its own header, is broken.
    """
    notes = dict(layout.notes)
    if _MASK not in content.values and not layout.mask_elsewhere:
        notes[_MASK] = _NO_MASK
    info = ShardInfo(None, layout.last_state, None, notes, layout.name)
    return info if layout.info is None else layout.info(content, info)


def _keys(content: Content) -> str:
    return ", ".join(sorted(content.values)) or "nothing"
