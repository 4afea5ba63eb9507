"""config.json and tensor shapes -> `DraftConfig`.

Dimensions come from shapes and knobs from keys; where the config states a dimension too and is
wrong, the shape wins and a note tells. Every value is written into the ledger with its source.
"""

from collections.abc import Mapping

from converters.attention_configs import read_attention
from converters.captures import stated_ids
from converters.config_keys import NESTED, Keys
from converters.dialects.base import Dialect
from converters.draft_ropes import read_draft_rope
from converters.evidence import Evidence
from converters.keys import read_flag, read_integer, read_number
from converters.ledger import Ledger
from converters.names import FIRST, HEAD
from converters.tensors import Tensor
from eagle3_jax.config import DraftConfig, HeadSource
from eagle3_jax.errors import InputError

_ALIASES = {"fc_norm": ("fc_norm", "use_aux_norm")}  # a knob's keys at the top
_LARGEST_VOCAB = 1 << 24  # sixty times what any model has: a config alone may say anything
_NESTED_NAMES = {"norm_before_fc": "norm_before_fc", "norm_output": "return_hidden_post_norm"}


def read_config(evidence: Evidence) -> DraftConfig:
    """Every dimension and knob of a draft.

    Raises:
        InputError: when config and tensors contradict each other where no shape can decide.
        ValueError: when they agree on what no draft can be.
    """
    keys, tensors, dialect, ledger = (
        evidence.keys,
        evidence.tensors,
        evidence.dialect,
        evidence.ledger,
    )
    settle = ledger.settle
    width = evidence.length(FIRST + "hidden_norm.weight")
    evidence.settle("hidden_size", width, "shape of hidden_norm")
    rows, _ = evidence.shape(FIRST + "mlp.gate_proj.weight")
    head, draft_size = _head(evidence)
    vocab_size = _vocab_size(evidence)
    target_width, num_aux = _fused(evidence, width)
    if draft_size is None:
        _require_whole(keys, vocab_size)
        draft_size = settle("draft_vocab_size", vocab_size, "the target's vocabulary")
    else:
        evidence.settle("draft_vocab_size", draft_size, "shape of lm_head")
    fc_norm = read_knob(keys, dialect, ledger, "fc_norm")
    norm_before_fc = read_knob(keys, dialect, ledger, "norm_before_fc")
    _require_weights(evidence, norm_before_fc=norm_before_fc, fc_norm=fc_norm)
    final_norm, norm_output = _final_norm(evidence)
    return DraftConfig(
        hidden_size=width,
        target_hidden_size=target_width,
        intermediate_size=evidence.settle("intermediate_size", rows, "shape of gate_proj"),
        vocab_size=vocab_size,
        draft_vocab_size=draft_size,
        attention=read_attention(evidence),
        rope=read_draft_rope(keys, dialect, ledger),
        num_aux=num_aux,
        num_layers=evidence.settle(
            "num_hidden_layers", _layer_count(tensors, keys.where), "tensors' names"
        ),
        rms_norm_eps=_epsilon(keys, ledger),
        norm_before_residual=read_knob(keys, dialect, ledger, "norm_before_residual"),
        norm_before_fc=norm_before_fc,
        fc_norm=fc_norm,
        norm_output=norm_output,
        double_norm=read_knob(keys, dialect, ledger, "double_norm"),
        final_norm=final_norm,
        fc_bias=settle("fc_bias", evidence.has("fc.bias", _bias_key(evidence)), "tensor fc.bias"),
        mlp_bias=settle(
            "mlp_bias",
            evidence.has(FIRST + "mlp.down_proj.bias", "mlp_bias"),
            "tensor down_proj.bias",
        ),
        head=settle("head", head, "tensor lm_head.weight and tie_word_embeddings"),
    )


def read_knob(keys: Keys, dialect: Dialect, ledger: Ledger, name: str) -> bool:
    """A flag: what the user says, else the config where the framework heeds it, else a default.

    Raises:
        InputError: when the config asks for what the framework does not do, or says two things.
    """
    stated: dict[str, bool] = {}
    if name != "double_norm":  # no config has a key for it
        for key in _ALIASES.get(name, (name,)):
            if keys.values.get(key) is not None:
                stated[keys.place(key)] = read_flag(keys.values, key, keys.where)
        nested = _NESTED_NAMES.get(name)
        if nested is not None and keys.nested.get(nested) is not None:
            stated[f"config {NESTED}.{nested}"] = read_flag(keys.nested, nested, keys.where)
    if name in ledger.settings:
        return ledger.flag(name, False, "")
    if len(set(stated.values())) > 1:
        told = " and ".join(f"{place} {_word(value)}" for place, value in stated.items())
        raise InputError(
            f"{keys.where}: {told} differ, expected one value (--set {name}=... decides)"
        )
    found = next(iter(stated.items()), None)
    if name in dialect.always:
        fixed, reason = dialect.always[name]
        if found is not None and found[1] != fixed:
            raise InputError(
                f"{keys.where}: {name} is {_word(found[1])}, but this is a {dialect.name} draft "
                f"and {dialect.title}: {reason} (--set {name}=true or false says how it was "
                "trained, --from names another writer)"
            )
        if name in dialect.doubts:
            ledger.notes.append(f"{name}: {dialect.doubts[name]}")
        return ledger.flag(name, fixed, f"{dialect.name}'s rule: {reason}")
    if found is not None:
        return ledger.flag(name, found[1], found[0])
    if name in dialect.doubts:
        ledger.notes.append(f"{name}: {dialect.doubts[name]}")
    return ledger.flag(name, False, f"{dialect.name}'s default")


def _word(value: bool) -> str:
    return "true" if value else "false"


def _require_weights(evidence: Evidence, **flags: bool) -> None:
    """Refuse a norm without its flag, and a flag without its norm."""
    for key, tensor in (("norm_before_fc", "input_norm.weight"), ("fc_norm", "fc_norm.0.weight")):
        flag = flags[key]
        if flag != (tensor in evidence.tensors) and (flag or key not in evidence.ledger.settings):
            raise InputError(
                f"{evidence.keys.where}: {key} is {'on' if flag else 'off'}, but the file holds "
                f"{'no ' if flag else ''}{tensor}: one of them is wrong, and acceptance hangs on "
                f"it (--set {key}=true or false decides)"
            )


def _final_norm(evidence: Evidence) -> tuple[bool, bool]:
    """Whether the head reads a normed state, and whether the next step is fed one."""
    keys, dialect, ledger = evidence.keys, evidence.dialect, evidence.ledger
    held = "norm.weight" in evidence.tensors
    if not dialect.norm_output_is_final_norm:
        fed = read_knob(keys, dialect, ledger, "norm_output")
        if not held:
            ledger.notes.append("no norm.weight: the head reads the raw state")
        return ledger.flag("final_norm", held, "tensor norm.weight"), fed
    asked = read_flag(keys.values, "norm_output", keys.where, default=True)
    source = (
        keys.place("norm_output") if "norm_output" in keys.values else f"{dialect.name}'s default"
    )
    fed = ledger.flag("norm_output", False, f"{dialect.name}'s rule: the raw state is fed back")
    return ledger.flag("final_norm", asked, f"{source}, which says what the head reads"), fed


def _bias_key(evidence: Evidence) -> str | None:
    """The key that says whether fc has a bias; SGLang's also stands for one of o_proj."""
    return "bias" if "fc_bias" not in evidence.dialect.lacks else None


def _epsilon(keys: Keys, ledger: Ledger) -> float:
    asked = ledger.settings.get("rms_norm_eps")
    if isinstance(asked, float):
        return ledger.settle("rms_norm_eps", asked, "--set")
    found = read_number(keys.values, "rms_norm_eps", keys.where)
    if found < 0:
        raise InputError(f"{keys.where}: rms_norm_eps is {found}, expected a positive number")
    return ledger.settle("rms_norm_eps", found, keys.place("rms_norm_eps"))


def _head(evidence: Evidence) -> tuple[HeadSource, int | None]:
    """Whose head, and its rows; `None` where the target's vocabulary says."""
    tied = read_flag(evidence.keys.values, "tie_word_embeddings", evidence.keys.where)
    if HEAD in evidence.tensors:
        if tied:
            evidence.ledger.notes.append(
                "tie_word_embeddings is true beside an own lm_head: the own one is used"
            )
        return "own", evidence.shape(HEAD)[0]
    return ("tied" if tied else "target"), None


def _require_whole(keys: Keys, vocab_size: int) -> None:
    """Refuse a pruned head that is not there: the target's, or a tied one, is never pruned."""
    stated = keys.values.get("draft_vocab_size")
    if stated not in (None, vocab_size):
        raise InputError(
            f"{keys.where}: draft_vocab_size is {stated!r}, but the file holds no {HEAD}, expected "
            f"one of {stated!r} rows: without it the head is another's, of {vocab_size}"
        )


def _vocab_size(evidence: Evidence) -> int:
    found = set(evidence.vocab_sizes.values())
    if len(found) > 1:
        told = ", ".join(f"{size} by {name}" for name, size in evidence.vocab_sizes.items())
        raise InputError(f"{evidence.keys.where}: the vocabulary is {told}, expected one size")
    if not found:
        size = read_integer(evidence.keys.values, "vocab_size", evidence.keys.where)
        if size > _LARGEST_VOCAB:
            raise InputError(
                f"{evidence.keys.where}: vocab_size is {size}, expected at most {_LARGEST_VOCAB}"
            )
        return evidence.ledger.settle("vocab_size", size, evidence.keys.place("vocab_size"))
    return evidence.settle(
        "vocab_size", found.pop(), f"length of {next(iter(evidence.vocab_sizes))}"
    )


def _fused(evidence: Evidence, width: int) -> tuple[int, int]:
    """Dt and A, from fc's columns and the config's counts."""
    keys, ledger = evidence.keys, evidence.ledger
    where = keys.where
    target_width = read_integer(keys.values, "target_hidden_size", where, default=width)
    given = keys.values.get("target_hidden_size") is not None
    source = keys.place("target_hidden_size") if given else "the draft's own width"
    ledger.settle("target_hidden_size", target_width, source)
    fused = "fc.weight" in evidence.tensors
    if read_flag(keys.nested, "use_aux_hidden_state", where, default=fused) != fused:
        held = "holds" if fused else "holds no"
        ledger.notes.append(f"use_aux_hidden_state is {not fused}, but the file {held} fc.weight")
    if not fused:
        stated = (
            None
            if keys.nested.get("use_aux_hidden_state") is False
            else stated_ids(keys, evidence.dialect.numbering)
        )
        if evidence.boundaries is not None:
            stated = [*evidence.boundaries], "--boundaries"
        if stated is not None and stated[0]:
            raise InputError(
                f"{where}: {stated[1]} names {len(stated[0])} states, but the file holds no "
                "fc.weight that fuses them, expected one, or use_aux_hidden_state false for a "
                "draft of the target's last state alone"
            )
        ledger.notes.append("no fc: the draft reads the target's last state alone")
        return target_width, ledger.settle("num_aux", 0, "no tensor fc.weight")
    _, columns = evidence.shape("fc.weight")
    if evidence.boundaries is not None:
        counts = {"--boundaries": len(evidence.boundaries)}
    else:
        stated = stated_ids(keys, evidence.dialect.numbering)
        counts = {} if stated is None else {stated[1]: len(stated[0])}
    for key in ("num_aux_hidden_states", "num_aux_layers"):
        if keys.values.get(key) is not None:
            counts[key] = read_integer(keys.values, key, where)
    for name, number in counts.items():
        if number * target_width != columns:
            raise InputError(
                f"{where}: {name} means {number} states of width {target_width}, but fc reads "
                f"{columns} columns, expected {number * target_width}"
            )
    if columns % target_width:
        raise InputError(
            f"{where}: fc reads {columns} columns, expected a multiple of the target's width "
            f"{target_width}"
        )
    return target_width, ledger.settle("num_aux", columns // target_width, "shape of fc")


def _layer_count(tensors: Mapping[str, Tensor], where: str) -> int:
    texts = {name.split(".")[1] for name in tensors if name.startswith("layers.")}
    numbers = {int(text) for text in texts if text.isdecimal()}
    if numbers != set(range(len(numbers))):
        raise InputError(
            f"{where}: the file holds tensors of layers {', '.join(map(str, sorted(numbers)))}, "
            "expected layers from 0 without a gap"
        )
    return len(numbers)
