"""How each server would read a draft checkpoint beside a target of some class and depth.

    config.json ──> keys ──> capture, knobs, rotation ──┐
    tensor names ──────────> what fills the parameters ──┴──> Served, beside the trained reading

Data (`sgl`, `vllm`, `others`) stands apart from the logic, and each engine points to its dialect:
what a framework has no place for is written down once, for files and for serving.
"""

from pathlib import Path

from converters.drafts import OpenDraft
from converters.engines.base import Engine, Served
from converters.engines.others import LLAMA_CPP, LLAMA_CPP_OLD, SAFEAILAB, TENSORRT_LLM
from converters.engines.serving import serve
from converters.engines.sgl import SGLANG, SGLANG_JAX
from converters.engines.vllm import SPECULATORS, TPU_INFERENCE, VLLM, VLLM_NEW_RUNNER
from eagle3_jax.errors import InputError

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        SAFEAILAB,
        SGLANG,
        VLLM,
        VLLM_NEW_RUNNER,
        SPECULATORS,
        TENSORRT_LLM,
        TPU_INFERENCE,
        SGLANG_JAX,
        LLAMA_CPP_OLD,
        LLAMA_CPP,
    )
}


def engine_of(name: str) -> Engine:
    """An engine by its name.

    Raises:
        InputError: for a name that nobody here knows.
    """
    if name not in ENGINES:
        raise InputError(f"engine {name!r} is unknown, expected one of {', '.join(ENGINES)}")
    return ENGINES[name]


def serve_all(
    directory: Path,
    draft: OpenDraft,
    *,
    target_layers: int,
    target_class: str,
    target_hidden_size: int | None = None,
) -> list[Served]:
    """A draft as every engine would serve it; the arguments are those of `serve`.

    Raises:
        InputError: as `serve` does.
    """
    return [
        serve(
            directory,
            draft,
            engine,
            target_layers=target_layers,
            target_class=target_class,
            target_hidden_size=target_hidden_size,
        )
        for engine in ENGINES.values()
    ]


__all__ = ["ENGINES", "Engine", "Served", "engine_of", "serve", "serve_all"]
