"""What a dialect is: one framework's way of writing a draft, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from eagle3_jax.capture import Numbering

Embeddings = Literal["own", "shared", "replaced", "unread", "needed"]
Place = Literal["eagle_config", "top"]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How one framework names, configures and understands a draft.

    Attributes:
        name: as users say it, in `--to` and `--from`.
        title: whose it is, in words.
        source: what its rules were read from.
        architecture: the `architectures` string that it registers.
        latent_architecture: the one for latent attention; `None` where it has none.
        latent_model_type: of its config.json for latent attention.
        qk_norm_architecture: the one for q/k norms, whose model_type is qwen3; `None` where
            the usual one has a place for them, or there is none.
        first_layer: prefix of layer 0.
        latent_first_layer: the same for latent attention.
        later_layers: prefix of the layers after it.
        prefix: before every name but the head's and the vocabulary's.
        later_norm: what it calls the input norm of the layers after the first.
        numbering: what its layer ids mean.
        ids: where its config states them; `None` where it does not.
        default_capture: it takes boundaries 2, L//2, L-3 where no ids are stated.
        embeddings: own: a table in the file is used; shared: the target's is used unless the
            file has one; replaced: the target's takes the place of the file's, unless the widths
            differ; unread: the file's is never looked at; needed: without a table in the file it
            would be random.
        maps: the vocabulary tensors that it writes.
        whole_maps: it writes them for a draft vocabulary that is the target's, too.
        order: whose order of ids it keeps: any draft's; where the draft vocabulary is smaller
            than the target's; none, it takes them as ascending.
        dtype_key: the config key that names the weights' type.
        always: knobs that are so whatever a config says, with the reason.
        doubts: what to tell when a flag is missing, since others read it otherwise.
        lacks: what it has no place for (names of `FEATURES`), with the reason.
        tied_head: `tie_word_embeddings` makes its head of the token embeddings.
        borrowed_head: without an lm_head it takes the target's.
        counts_ids: it counts the aux states by the layer ids alone, and takes three without any.
        latent_counts_ids: the same for latent attention.
        biases: which projections have a bias where `attention_bias` is true.
        fc_bias_brings_output_bias: `bias` means one of o_proj too.
        eagle_config: it reads an `eagle_config`; holds the keys of it that never change.
        feedback_key: what that calls `norm_output`, where it does.
        target_width_key: `target_hidden_size` is written where it is the draft's width, too.
        rope_parameters: it needs that key of transformers 5, whichever of them loads the config.
        spelled_yarn: it has no defaults for YaRN's mscale and mscale_all_dim.
        nested_config: the decoder layer's keys stand in `transformer_layer_config`.
        trained_theta: the RoPE base that it trains with whatever a config says.
        added_yarn: factor and original length of a YaRN scaling that its export adds.
        norm_output_is_final_norm: its `norm_output` says whether the head reads a normed state.
        writable: drafts are written for it, not only read.
        witness: the framework, by its name in `benchmarks/agreement.json`, whose own code writes
            or reads files of this form in `tests/witness`; `None` where none was run.
    """

    name: str
    title: str
    source: str
    architecture: str
    latent_architecture: str | None = None
    latent_model_type: str = "kimi_k2"
    qk_norm_architecture: str | None = None
    first_layer: str = "midlayer."
    latent_first_layer: str = "layers.0."
    later_layers: str = "layers.{i}."
    prefix: str = ""
    later_norm: Literal["input_layernorm", "hidden_norm"] = "input_layernorm"
    numbering: Numbering = "output"
    ids: Place | None = None
    default_capture: bool = True
    embeddings: Embeddings = "own"
    maps: tuple[str, ...] = ("d2t", "t2d")
    whole_maps: bool = True
    order: Literal["any", "pruned", "none"] = "any"
    dtype_key: str = "torch_dtype"
    always: Mapping[str, tuple[bool, str]] = field(default_factory=dict)
    doubts: Mapping[str, str] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    tied_head: bool = False
    borrowed_head: bool = False
    counts_ids: bool = False
    latent_counts_ids: bool = False
    biases: Literal["", "o", "qkv", "qkvo"] = ""
    fc_bias_brings_output_bias: bool = False
    eagle_config: Mapping[str, bool] | None = None
    feedback_key: str | None = None
    target_width_key: bool = False
    rope_parameters: bool = False
    spelled_yarn: bool = False
    nested_config: bool = False
    trained_theta: float | None = None
    added_yarn: tuple[float, int] | None = None
    norm_output_is_final_norm: bool = False
    writable: bool = True
    witness: str | None = None


RAW_RESIDUAL = "its residual is always the raw state"
NO_PRE_FC_NORM = "it has no norm before fc"
FEEDS_RAW = "it always feeds back the raw state"
ONE_NORM = "it norms the hidden half once"
ONE_LAYER = "it reads one layer"
NO_SLOT = "it has no place for the tensors"
NO_WINDOW = "it attends to everything"
THREE_STATES = "its fc is built for three states"
ALWAYS_HEADED = "its head always reads a normed state"


def without(reason: str, *names: str) -> dict[str, str]:
    """The features that a framework lacks for one reason."""
    return dict.fromkeys(names, reason)


# No server norms the hidden half twice, and none reads a head without its norm.
SERVED = without(ONE_NORM, "double_norm") | without(ALWAYS_HEADED, "no_final_norm")
