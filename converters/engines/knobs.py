"""What an engine takes a config's knobs for, one question each."""

from converters.config_keys import IDS, NESTED
from converters.engines.base import Engine
from converters.engines.views import View
from converters.features import grouped
from converters.keys import read_flag, read_integer
from eagle3_jax.config import DraftConfig, HeadSource

_DEFAULT_COUNT = 3


def flag(view: View, engine: Engine, name: str) -> bool:
    """A knob as the engine has it: fixed, stated where it looks, or off.

    Raises:
        InputError: when a key is no boolean.
    """
    if name in engine.dialect.always:
        return engine.dialect.always[name][0]
    stated = [
        is_set(view, key) for key in engine.flag_keys.get(name, ()) if view.stated(key) is not None
    ]
    # A nested norm_before_fc wins, even off; of two keys for another knob either turns it on.
    return stated[0] if stated and name == "norm_before_fc" else any(stated)


def is_set(view: View, key: str) -> bool:
    """A key that is there and true.

    Raises:
        InputError: when it is no boolean.
    """
    holder, _, name = key.rpartition(".")
    return read_flag(view.nested if holder else view.values, name, view.where)


def window(view: View) -> int | None:
    """The window of the first layer, by `layer_types`, as every engine that has one goes by them.

    Raises:
        InputError: when it is no whole number.
    """
    kinds = view.values.get("layer_types")
    sliding = isinstance(kinds, list) and kinds[:1] == ["sliding_attention"]
    if not sliding or view.values.get("sliding_window") is None:
        return None
    return read_integer(view.values, "sliding_window", view.where)


def count_states(view: View, engine: Engine) -> int:
    """How many states its `fc` is built for.

    Raises:
        InputError: when a count is no whole number.
    """
    for source in engine.counts.get(view.kind or "llama", ()):
        place, _, is_list = source.partition(" ")
        if is_list:
            ids = (view.nested if place == NESTED else view.values).get(IDS)
            if ids:
                return len(ids)
        elif view.values.get(source) is not None:
            return read_integer(view.values, source, view.where)
    return _DEFAULT_COUNT


def head_source(view: View, engine: Engine, *, held: bool) -> HeadSource:
    """Whose rows make logits.

    Args:
        view: the config as the engine sees it.
        engine: whose rule holds.
        held: the file has an lm_head under a name that the engine knows.
    """
    if engine.dialect.tied_head and is_set(view, "tie_word_embeddings"):
        return "tied"
    if engine.null_head:
        # SGLang's class for latent attention takes an absent key for a null one.
        asked = view.kind == "latent" or "draft_vocab_size" in view.values
        null = asked and view.values.get("draft_vocab_size") is None
        return "target" if null else "own"
    return "target" if engine.dialect.borrowed_head and not held else "own"


def reads_own_table(view: View, engine: Engine, config: DraftConfig, *, held: bool) -> bool:
    """Whether the token embeddings are the draft's own.

    Args:
        view: the config as the engine sees it.
        engine: whose rule holds.
        config: the draft.
        held: the file has a table under a name that the engine knows.
    """
    wider = config.target_hidden_size != config.hidden_size
    match engine.dialect.embeddings:
        case "unread":
            return False
        case "needed":
            return True
        case "replaced":
            return wider
        case _:
            stated = engine.width_key_ends_sharing and "target_hidden_size" in view.values
            return held or wider or stated


def contradictions(view: View, engine: Engine, config: DraftConfig) -> tuple[str, ...]:
    """Sizes of the config by which the engine builds what the file's tensors do not fit.

    Args:
        view: the config as the engine sees it.
        engine: whose rule for the width of a head holds.
        config: the draft by the shapes of its tensors.
    """
    found = {"hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size}
    told = []
    attention = grouped(config)
    if attention is not None:
        found["num_key_value_heads"] = attention.num_kv_heads
        stated = view.values.get("head_dim") if engine.head_width == "stated" else None
        built = stated or config.hidden_size // attention.num_heads
        if built != attention.head_dim:
            why = f"config head_dim {stated}" if stated else "hidden_size / heads"
            told.append(
                f"it builds heads of {built} ({why}), the tensors' are of {attention.head_dim}"
            )
    if config.head == "own" and view.values.get("draft_vocab_size") is not None:
        found["draft_vocab_size"] = config.draft_vocab_size
    for key, actual in found.items():
        stated = view.values.get(key)
        if stated is not None and stated != actual:
            told.append(f"{key} is {stated} in the config, {actual} by the tensors")
    return tuple(told)
