"""Whose file a draft is, told by its tensors and its config; never by `architectures` alone."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from converters.dialects import DIALECTS
from converters.dialects.base import Dialect
from converters.names import EMBEDDING

# What this project writes into the metadata of safetensors: whose file it is, and the capture,
# which not every config.json can state.
MARK, CAPTURE = "eagle3_jax_dialect", "eagle3_jax_boundaries"
_IDS = "eagle_aux_hidden_state_layer_ids"
_MODELOPT = ("next_layer_regular", "use_last_layernorm", "use_mtp_layernorm", "parallel_draft_step")


class Clues(NamedTuple):
    """What a draft is told by.

    Attributes:
        raw: config.json.
        names: of its tensors, as in the file.
        metadata: of its safetensors file.
    """

    raw: Mapping[str, Any]
    names: frozenset[str]
    metadata: Mapping[str, str]

    @property
    def nested(self) -> Mapping[str, Any]:
        """`eagle_config`, empty where it is not."""
        nested = self.raw.get("eagle_config")
        return nested if isinstance(nested, dict) else {}

    @property
    def architecture(self) -> str:
        """The first of `architectures`, empty where there is none."""
        named = self.raw.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else ""

    def has(self, start: str) -> bool:
        """Whether a tensor's name starts so."""
        return any(name.startswith(start) for name in self.names)

    @property
    def lost_map(self) -> bool:
        """A draft vocabulary smaller than the target's, and no tensor that says which ids."""
        sizes = self.raw.get("draft_vocab_size"), self.raw.get("vocab_size")
        return not {"d2t", "t2d"} & self.names and None not in sizes and sizes[0] != sizes[1]


class Detection(NamedTuple):
    """A dialect and what speaks for it, one statement each."""

    dialect: Dialect
    evidence: tuple[str, ...]


def _speculators(clues: Clues) -> bool:
    return bool({"speculators_config", "speculators_model_type"} & clues.raw.keys())


def _modelopt(clues: Clues) -> bool:
    bare = "d2t" in clues.names and "t2d" not in clues.names and bool(clues.nested)
    return (bare and not _served(clues)) or any(key in clues.nested for key in _MODELOPT)


def _served(clues: Clues) -> bool:
    return bool({"norm_before_fc", "num_aux_hidden_states", "bias"} & clues.raw.keys())


def _old_name(clues: Clues) -> bool:
    named = clues.architecture == "LlamaForCausalLM" and clues.has("midlayer.")
    return named and clues.raw.get("draft_vocab_size") is not None


_Fingerprint = tuple[str, str, Callable[[Clues], bool]]
_FINGERPRINTS: tuple[_Fingerprint, ...] = (  # the first that fits; the surest come first
    (
        "speculators-converted",
        "config has speculators_config, and architectures name Eagle3Speculator",
        lambda c: _speculators(c) and c.architecture == "Eagle3Speculator",
    ),
    ("speculators", "config has speculators_config", _speculators),
    (
        "torchspec",
        "config or metadata has torchspec_version",
        lambda c: any("torchspec_version" in key for key in (*c.raw, *c.metadata)),
    ),
    (
        "automodel",
        "tensors are named model.layers.0.*, and fc model.fc",
        lambda c: c.has("model.layers.0.hidden_norm") and c.has("model.fc."),
    ),
    (
        "tensorrt-llm",
        "eagle_config has return_hidden_post_norm or eh_proj_before_attn",
        lambda c: bool({"return_hidden_post_norm", "eh_proj_before_attn"} & c.nested.keys()),
    ),
    (
        "modelopt-megatron",
        "a pruned head without d2t and t2d, with tensors named midlayer.*",
        lambda c: c.lost_map and c.has("midlayer."),
    ),
    (
        "modelopt",
        "eagle_config with ModelOpt's keys or beside d2t without t2d, tensors named layers.*",
        lambda c: _modelopt(c) and c.has("layers."),
    ),
    (
        "modelopt-2025",
        "eagle_config with ModelOpt's keys or beside d2t without t2d, tensors named midlayer.*",
        lambda c: _modelopt(c) and c.has("midlayer."),
    ),
    (
        "angelslim",
        "config has target_model_type or modal_type",
        lambda c: bool({"target_model_type", "modal_type"} & c.raw.keys()),
    ),
    ("vllm", f"config has {_IDS} at the top", lambda c: c.raw.get(_IDS) is not None),
    ("vllm", "q/k norms", lambda c: any("self_attn.q_norm" in name for name in c.names)),
    (
        "vllm",
        "norm_before_residual is true, which the others cannot do",
        lambda c: c.raw.get("norm_before_residual") is True,
    ),
    (
        "sglang",
        "config has knobs of servers (norm_before_fc, num_aux_hidden_states, bias)",
        _served,
    ),
    (
        "angelslim",
        "architectures name Eagle3LlamaForCausalLM, tensors are named midlayer.*, no eagle_config",
        lambda c: (
            c.architecture == "Eagle3LlamaForCausalLM" and c.has("midlayer.") and not c.nested
        ),
    ),
    (
        "specforge",
        "architectures name LlamaForCausalLMEagle3, tensors are named midlayer.*",
        lambda c: c.architecture == "LlamaForCausalLMEagle3" and c.has("midlayer."),
    ),
    (
        "specforge",
        "eagle_config beside midlayer.* and no embed_tokens",
        lambda c: bool(c.nested) and c.has("midlayer.") and EMBEDDING not in c.names,
    ),
    (
        "specjax",
        "architectures name LlamaForCausalLM, with rope_theta beside a draft vocabulary",
        lambda c: _old_name(c) and "rope_theta" in c.raw,
    ),
    (
        "eagle",
        "architectures name LlamaForCausalLM beside a draft vocabulary, without rope keys",
        lambda c: _old_name(c) and not {"rope_scaling", "rope_parameters"} & c.raw.keys(),
    ),
)


def detect(clues: Clues) -> Detection:
    """The dialect of a draft.

    Where no fingerprint fits, the names are ones that SGLang reads, whose rules are the common
    ones.
    """
    marked = clues.metadata.get(MARK)
    if marked in DIALECTS:
        return Detection(DIALECTS[marked], (f"written for {marked} by this program (metadata)",))
    fitting = [(name, told) for name, told, fits in _FINGERPRINTS if fits(clues)]
    if not fitting:
        return Detection(DIALECTS["sglang"], ("no framework's fingerprint: read as SGLang does",))
    name = fitting[0][0]
    return Detection(DIALECTS[name], tuple(told for other, told in fitting if other == name))
