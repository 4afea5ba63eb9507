"""What an engine is: one program that reads a draft beside a target, as data.

An engine points to the dialect whose rules it keeps, and adds what only serving shows: where it
looks for layer ids, which names it knows, and what it does about a name that it does not know.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from converters.dialects.base import Dialect
from eagle3_jax.config import DraftConfig, HeadSource
from eagle3_jax.vocab import VocabMap

Kind = Literal["llama", "qwen3", "latent"]
Numbered = Literal["boundary", "output", "output if ids[0] is 1", "boundary if max(ids) is L"]
IdPlace = Literal["top", "eagle_config", "eagle_config.layer_ids"]


class ClassRule(NamedTuple):
    """How an engine captures the states of one class of targets.

    Attributes:
        numbered: what layer ids mean.
        default_offset: added to the boundaries 2, L//2, L-3 where no ids are stated.
        captures_end: boundary L, the last layer's output, can be captured.
        source: where the rule stands.
    """

    numbered: Numbered
    default_offset: int = 0
    captures_end: bool = True
    source: str = ""


class Option(NamedTuple):
    """A launch option, or a rule, that is told only where something holds.

    Attributes:
        told: the text; `{draft}`, `{window}` and `{ids}` stand for the draft's directory, its
            sliding window and the ids of its capture.
        when: always; window: the draft was trained with a sliding window; pruned: its vocabulary
            is smaller than the target's; captured: its capture is known; other_class: the target
            is of a class that the engine does not name.
    """

    told: str
    when: Literal["always", "window", "pruned", "captured", "other_class"] = "always"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How one engine loads and computes a draft.

    Attributes:
        name: as users say it.
        version: that its rules were read from.
        dialect: whose format it reads; its knobs, its embeddings and what it lacks hold here.
        source: what the rules of serving were read from.
        classes: targets by class, where they have different rules.
        general: the rule of all other classes.
        known: classes that the general rule was read for; empty where it has one rule.
        places: where it looks for layer ids, in this order; empty where it ignores them.
        counts: what tells how many states `fc` reads, in this order, and three without any of it.
        reads_last_state_only: `eagle_config.use_aux_hidden_state` false is heeded.
        least_layers: of a target that its default capture takes; with fewer it refuses.
        architectures: `architectures` strings and the class that they lead to; `None` where it
            never looks.
        renaming: what it does to an `architectures` string first.
        nested: what it makes of `transformer_layer_config`.
        adapter_defaults: flags with another default where that is there.
        prefixes: before every name but the head's and the vocabulary's.
        latent_prefixes: the same for latent attention.
        first: prefixes of layer 0.
        later: prefixes of the layers after it.
        old_norm_names: `aux_norm_low` and its kin are names of `fc_norm`.
        unknown: what becomes of a tensor that it has no place for.
        silent: starts of canonical names that its class for grouped queries passes over without a
            word all the same.
        absent: what becomes of a parameter that the file lacks.
        builds: as many layers as `num_hidden_layers` says, or one.
        flag_keys: the keys of a knob in the order in which they win.
        both_norms: with `norm_before_fc` and `fc_norm`, it applies one after the other, or the
            latter alone.
        output_bias: keys that give `o_proj` a bias.
        needs_draft_vocab: its class for grouped queries refuses a config without
            `draft_vocab_size`.
        null_head: whether the target's head is taken is told by a null `draft_vocab_size`, not by
            the tensors.
        null_width_fails: a null `target_hidden_size` is refused.
        width_key_ends_sharing: with that key, even at the draft's own width, the target's table
            is not taken.
        whole_map: what becomes of d2t where the draft vocabulary is the target's.
        checks_map: refuses ids that repeat or lie outside the vocabulary.
        rope: how it comes to its rotation.
        default_theta: the RoPE base without a key.
        one_layer: `num_hidden_layers` other than 1 is refused.
        head_width: the width of a head is stated, or always hidden_size / heads.
        launch: options that make it serve the draft.
        rules: what bites.
    """

    name: str
    version: str
    dialect: Dialect
    source: str
    classes: Mapping[str, ClassRule] = field(default_factory=dict)
    general: ClassRule
    known: frozenset[str] = frozenset()
    places: tuple[IdPlace, ...] = ()
    counts: Mapping[Kind, tuple[str, ...]] = field(default_factory=dict)
    reads_last_state_only: bool = False
    least_layers: int = 0
    architectures: Mapping[str, Kind] | None = None
    renaming: Literal["none", "prefix", "suffix"] = "none"
    nested: Literal["refused", "adapted", "merged", "needed"] = "refused"
    adapter_defaults: Mapping[str, bool] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ("",)
    latent_prefixes: tuple[str, ...] = ("",)
    first: tuple[str, ...] = ("midlayer.",)
    later: tuple[str, ...] = ()
    old_norm_names: bool = False
    unknown: Literal["dropped", "refused"] = "dropped"
    silent: tuple[str, ...] = ()
    absent: Literal["initial", "refused"] = "initial"
    builds: Literal["stated", "one"] = "one"
    flag_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    both_norms: Literal["chained", "fc_norm"] = "chained"
    output_bias: tuple[str, ...] = ()
    needs_draft_vocab: bool = False
    null_head: bool = False
    null_width_fails: bool = False
    width_key_ends_sharing: bool = False
    whole_map: Literal["read", "deleted", "refused"] = "read"
    checks_map: bool = False
    rope: Literal["config", "plain", "eagle", "llama3", "gguf"] = "config"
    default_theta: float = 10000.0
    one_layer: bool = False
    head_width: Literal["stated", "derived"] = "stated"
    launch: tuple[Option, ...] = ()
    rules: tuple[Option, ...] = ()


class Served(NamedTuple):
    """A draft as one engine would serve it.

    Attributes:
        engine: its name.
        version: that its rules were read from.
        boundaries: what it captures, ascending; empty for the last state alone, or where its
            default fails.
        capture: why, in words.
        config: the draft that it computes; `None` where no `DraftConfig` can say it.
        dropped: canonical tensor name -> why it is never used.
        missing: canonical names of parameters that stay at their initial values.
        vocab: `[W]` the target ids that it maps to: a `VocabMap` where they can be one, else the
            raw ids, which may repeat or lie outside the vocabulary.
        embeddings: whose table it reads.
        head: whose rows make logits.
        refused: why it does not load or run this file, `None` where it does.
        flags: launch options that fit this draft.
        rules: what bites on this engine.
        differences: what is otherwise than in the trained reading, a sentence each.
    """

    engine: str
    version: str
    boundaries: tuple[int, ...]
    capture: str
    config: DraftConfig | None
    dropped: dict[str, str]
    missing: tuple[str, ...]
    vocab: VocabMap | np.ndarray
    embeddings: Literal["own", "target"]
    head: HeadSource
    refused: str | None
    flags: tuple[str, ...]
    rules: tuple[str, ...]
    differences: tuple[str, ...]
