"""Every key of a draft's config.json that somebody writes: decides, is ignored, or is refused."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from converters.keys import read_object
from eagle3_jax.errors import InputError

IDS = "eagle_aux_hidden_state_layer_ids"
_LARGEST = 1e18  # far beyond any size or base; also what NaN and Infinity are not below
NESTED, LAYER, SPECULATORS = "eagle_config", "transformer_layer_config", "speculators_config"
_DECIDE = frozenset(
    {
        "attention_bias",
        "bias",
        "draft_vocab_size",
        "fc_norm",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "kv_lora_rank",
        "logit_scale",
        "layer_types",
        "max_position_embeddings",
        "mlp_bias",
        "norm_before_fc",
        "norm_before_residual",
        "norm_output",
        "num_attention_heads",
        "num_aux_hidden_states",
        "num_aux_layers",
        "num_hidden_layers",
        "num_key_value_heads",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "q_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "rms_norm_eps",
        "rope_interleave",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "sliding_window",
        "target_hidden_size",
        "tie_word_embeddings",
        "use_aux_norm",
        "use_sliding_window",
        "v_head_dim",
        "vocab_size",
        IDS,
        NESTED,
        SPECULATORS,
    }
)
_DECIDE_NESTED = frozenset(
    {IDS, "layer_ids", "norm_before_fc", "return_hidden_post_norm", "use_aux_hidden_state"}
)
# Keys that change no number of a draft: text and sampling, training, the class that reads them.
_IGNORED = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _name_or_path _torchspec_version
    add_cross_attention architectures attention_dropout attn_implementation audio_token_id
    auto_map aux_loss_alpha bad_words_ids begin_suppress_tokens bos_token_id
    chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id
    diversity_penalty do_sample dtype early_stopping embed_requires_grad
    encoder_no_repeat_ngram_size eos_token_id ep_size exponential_decay_length_penalty
    finetuning_task first_k_dense_replace forced_bos_token_id forced_eos_token_id
    has_no_defaults_at_init id2label image_token_id initializer_range intermediate_size_mlp
    is_decoder is_encoder_decoder label2id length_penalty max_length max_window_layers
    min_length modal_type model_type moe_intermediate_size moe_layer_freq n_group
    n_routed_experts n_shared_experts no_repeat_ngram_size norm_topk_prob num_beam_groups
    num_beams num_experts_per_tok num_nextn_predict_layers num_return_sequences
    output_attentions output_hidden_states output_scores pad_token_id prefix pretraining_tp
    problem_type prune_heads pruned_heads qk_head_dim remove_invalid_values
    repetition_penalty return_dict return_dict_in_generate
    routed_scaling_factor scoring_func sep_token_id seq_aux speculators_model_type
    speculators_version suppress_tokens target_model_type task_specific_params temperature
    tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p topk_group topk_method
    torch_dtype torchscript torchspec_version transformers_version typical_p use_bfloat16
    use_cache video_token_id vision_end_token_id vision_start_token_id
    """.split()  # noqa: SIM905  # a hundred quoted lines would be harder to read
)
_IGNORED_NESTED = frozenset(
    [
        "use_input_layernorm_in_first_layer",
        "use_last_layernorm",
        "use_mtp_layernorm",
        "next_layer_regular",
    ]
)
# Keys that mark another kind of draft when they are set.
_FOREIGN = {
    "quantization_config": "quantised weights",
    "compression_config": "quantised weights",
    "parallel_drafting": "parallel drafting (P-EAGLE)",
    "mask_token_id": "parallel drafting (P-EAGLE)",
}
_FOREIGN_NESTED = {
    "eh_proj_before_attn": "an eh_proj before attention",
    "eh_proj_bias": "an eh_proj before attention",
}


class Keys(NamedTuple):
    """A config.json with the decoder layer's keys beside the others.

    Attributes:
        values: key -> value; null is as good as absent.
        places: key -> where it stands, where that is not the top.
        nested: `eagle_config`.
        where: the file, for messages.
    """

    values: Mapping[str, Any]
    places: Mapping[str, str]
    nested: Mapping[str, Any]
    where: str

    def place(self, key: str) -> str:
        """A key as its source is told."""
        return f"config {self.places.get(key, key)}"


def read_keys(raw: dict[str, Any], where: str, allowed: Collection[str] = ()) -> Keys:
    """Check that every key is one that somebody here knows: each could change the numbers.

    Args:
        raw: config.json.
        where: the file, for messages.
        allowed: unknown keys that are to be passed over.

    Raises:
        InputError: for an unknown key, one that marks another kind of draft, or a key that
            stands in two places with different values.
    """
    values = {key: value for key, value in raw.items() if key != LAYER}
    places: dict[str, str] = {}
    for key, value in read_object(raw, LAYER, where).items():
        stated = values.get(key)
        if stated is not None and value is not None and stated != value and key not in _IGNORED:
            raise InputError(
                f"{where}: {key} is {stated!r} at the top and {value!r} in {LAYER}, expected one"
            )
        if stated is None:
            values[key], places[key] = value, f"{LAYER}.{key}"
    nested = read_object(raw, NESTED, where)
    for key in sorted(_DECIDE & values.keys()):
        _require_finite(key, values[key], where)
    _require_known(values, _DECIDE | _IGNORED, _FOREIGN, where, "", allowed)
    _require_known(
        nested, _DECIDE_NESTED | _IGNORED_NESTED, _FOREIGN_NESTED, where, f"{NESTED} has ", allowed
    )
    if (values.get("hidden_act") or "silu") != "silu":
        raise InputError(f"{where}: hidden_act is {values['hidden_act']!r}, expected 'silu'")
    if values.get("logit_scale") not in (None, 1):
        raise InputError(f"{where}: logit_scale is {values['logit_scale']!r}, expected 1")
    steps = nested.get("parallel_draft_step")
    if steps not in (None, 1):
        raise InputError(
            f"{where}: parallel_draft_step {steps} marks parallel drafting, expected 1"
        )
    return Keys(values, places, nested, where)


def _require_finite(key: str, value: Any, where: str) -> None:
    """Refuse what Python's JSON takes for a number and no model has."""
    if isinstance(value, dict):
        for name, part in value.items():
            _require_finite(f"{key}.{name}", part, where)
    elif isinstance(value, list):
        for part in value:
            _require_finite(key, part, where)
    elif isinstance(value, int | float) and not abs(value) < _LARGEST:
        raise InputError(
            f"{where}: {key} is {str(value)[:12]}, expected a number below {_LARGEST:g}"
        )


def _require_known(
    keys: Mapping[str, Any],
    known: frozenset[str],
    foreign: Mapping[str, str],
    where: str,
    holder: str,
    allowed: Collection[str],
) -> None:
    for key, kind in foreign.items():
        if keys.get(key) and key not in allowed:
            raise InputError(
                f"{where}: {key} marks {kind}, expected an EAGLE-3 draft in floating point that "
                f"drafts one token after another (--allow {key} passes over it)"
            )
    # Parallel drafting, which a step of 1 is not: ModelOpt's exports always state both.
    extra = {"parallel_draft_step", "parallel_draft_heads_num_layers"} if holder else set()
    unknown = sorted(keys.keys() - known - foreign.keys() - extra - set(allowed))
    if unknown:
        raise InputError(
            f"{where}: {holder}unknown keys {', '.join(unknown)}, expected none (--allow KEY "
            "passes over one that changes no number)"
        )
