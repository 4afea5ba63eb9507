"""Every dialect by name: who writes and reads EAGLE-3 drafts, and how."""

from converters.dialects.base import Dialect
from converters.dialects.native import NATIVE
from converters.dialects.nvidia import AUTOMODEL, MEGATRON, MODELOPT, MODELOPT_2025, TENSORRT_LLM
from converters.dialects.safeailab import ANGELSLIM, EAGLE, SPECJAX
from converters.dialects.sgl import SGLANG, SGLANG_JAX, SPECFORGE, SPECFORGE_OLD
from converters.dialects.torchspec import TORCHSPEC
from converters.dialects.vllm import CONVERTED, SPECULATORS, TPU_INFERENCE, VLLM
from eagle3_jax.errors import InputError

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        EAGLE,
        SPECFORGE,
        SPECFORGE_OLD,
        SGLANG,
        VLLM,
        SPECULATORS,
        CONVERTED,
        ANGELSLIM,
        MODELOPT,
        MODELOPT_2025,
        MEGATRON,
        SPECJAX,
        SGLANG_JAX,
        TPU_INFERENCE,
        AUTOMODEL,
        TORCHSPEC,
        TENSORRT_LLM,
        NATIVE,
    )
}


def dialect_of(name: str) -> Dialect:
    """A dialect by its name.

    Raises:
        InputError: for a name that nobody here knows.
    """
    if name not in DIALECTS:
        raise InputError(f"dialect {name!r} is unknown, expected one of {', '.join(DIALECTS)}")
    return DIALECTS[name]
