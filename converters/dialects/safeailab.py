"""The root format and the trainers that kept to it: one `midlayer`, three states, no flags."""

from converters.dialects.base import (
    FEEDS_RAW,
    NO_PRE_FC_NORM,
    NO_SLOT,
    NO_WINDOW,
    ONE_LAYER,
    RAW_RESIDUAL,
    SERVED,
    THREE_STATES,
    Dialect,
    without,
)

PLAIN_FLAGS = {
    "norm_before_residual": (False, RAW_RESIDUAL),
    "norm_before_fc": (False, NO_PRE_FC_NORM),
    "fc_norm": (False, NO_PRE_FC_NORM),
    "norm_output": (False, FEEDS_RAW),
}
PLAIN_LACKS = (
    SERVED
    | {name: reason for name, (_, reason) in PLAIN_FLAGS.items()}
    | without(NO_SLOT, "attention_bias", "output_bias", "mlp_bias", "fc_bias", "qk_norm")
    | without(NO_WINDOW, "sliding_window")
    | without(THREE_STATES, "last_state_only", "num_aux")
    | without(ONE_LAYER, "layers")
    | without("it attends with grouped queries", "latent_attention")
    | without("it turns whole heads", "partial_rotary")
)
_SCALINGS = ("linear", "dynamic", "llama3", "yarn", "longrope")

EAGLE = Dialect(
    name="eagle",
    title="SafeAILab EAGLE",
    source="SafeAILab/EAGLE cb7e0841, eagle/model/cnets.py and configs.py",
    architecture="LlamaForCausalLM",
    numbering="boundary",
    embeddings="shared",
    order="pruned",
    trained_theta=10000.0,
    always=PLAIN_FLAGS,
    lacks=PLAIN_LACKS
    | without("its head_dim is always hidden_size / heads", "head_dim")
    | without("it tells whether to apply fc by the width of what it reads", "square_fc")
    | without("it refuses, or turns with 10000 whatever rope_theta says", *_SCALINGS),
)
SPECJAX = Dialect(
    name="specjax",
    title="SpecJAX",
    source="tails-mpt/SpecJAX d047ed49, specjax/models/draft/eagle3.py",
    architecture="LlamaForCausalLM",
    embeddings="unread",
    order="none",
    always=PLAIN_FLAGS,
    lacks=PLAIN_LACKS
    | without("its fc reads three states of the draft's own width", "target_width")
    | without("it turns with rope_theta alone", *_SCALINGS),
)
ANGELSLIM = Dialect(
    name="angelslim",
    title="AngelSlim",
    source="Tencent/AngelSlim 67394ce5, compressor/speculative",
    architecture="Eagle3LlamaForCausalLM",
    embeddings="own",
    order="pruned",
    dtype_key="dtype",
    trained_theta=10000.0,
    always=PLAIN_FLAGS,
    lacks=PLAIN_LACKS
    | without("its fc reads three states of the draft's own width", "target_width")
    | without("it trains with plain angles", *_SCALINGS),
)
