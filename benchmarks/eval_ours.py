"""One process of `benchmarks/eval.py`: our evaluation of one text, timed."""

import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eagle3_jax.config import AttentionConfig, DraftConfig
from eagle3_jax.evaluate import evaluate
from eagle3_jax.heads import TargetHead
from eagle3_jax.model import Drafter
from eagle3_jax.structs import Features
from eagle3_jax.vocab import VocabMap

SIDE = 2048  # of the matrices that set the limit


def configured(case: dict[str, Any]) -> DraftConfig:
    """The draft of a request."""
    return DraftConfig(
        hidden_size=case["hidden_size"],
        target_hidden_size=case["target_hidden_size"],
        intermediate_size=case["intermediate_size"],
        vocab_size=case["vocab_size"],
        draft_vocab_size=case["draft_vocab_size"],
        attention=AttentionConfig(case["num_heads"], case["num_kv_heads"], case["head_dim"]),
    )


def products_per_second(dtype: jnp.dtype) -> float:
    """Floating-point operations a second in products of large matrices, the best of many."""
    square = jnp.asarray(np.random.default_rng(0).normal(size=(SIDE, SIDE)), dtype)
    multiply = jax.jit(jnp.matmul)
    multiply(square, square).block_until_ready()
    best = float("inf")
    for _ in range(20):
        begin = time.perf_counter()
        multiply(square, square).block_until_ready()
        best = min(best, time.perf_counter() - begin)
    return 2 * SIDE**3 / best


def main() -> None:
    """Build, run, tell."""
    request = json.loads(sys.argv[1])
    config, columns = configured(request["case"]), request["columns"]
    dtype = jnp.dtype(request["dtype"])
    rng = np.random.default_rng(0)

    def noise(*shape: int, scale: float = 1.0) -> jax.Array:
        return jnp.asarray(scale * rng.standard_normal(shape, np.float32), dtype)

    shapes = jax.eval_shape(
        Drafter(config).init,
        jax.random.key(0),
        jnp.zeros((1, 2, config.hidden_size)),
        jnp.zeros((1, 2, config.aux_width)),
        jnp.zeros((1, 2), jnp.int32),
    )["params"]
    params = jax.tree.map(lambda leaf: noise(*leaf.shape, scale=0.02), shapes)
    draft_ids = np.sort(rng.permutation(config.vocab_size)[: config.draft_vocab_size])
    vocab = VocabMap.from_ids(draft_ids, config.vocab_size)
    teacher = request["teacher"]
    head = None
    if teacher:
        width = config.target_hidden_size
        kernel = noise(width, config.vocab_size, scale=0.02)
        head = TargetHead(kernel, jnp.ones(width, dtype), 1e-5)
    features = Features(
        ids=jnp.asarray(rng.integers(0, config.vocab_size, (1, columns)), jnp.int32),
        aux=noise(1, columns, config.aux_width),
        embeddings=noise(1, columns, config.hidden_size),
        answer=jnp.ones((1, columns), bool),
        valid=jnp.ones((1, columns), bool),
        document=jnp.zeros(1, jnp.int32),
        last=noise(1, columns, config.target_hidden_size) if teacher else None,
    )
    precision = "highest" if dtype == jnp.float32 else "default"
    kernel = params["lm_head"]["kernel"]
    seconds = []
    with jax.default_matmul_precision(precision):
        for _ in range(1 + request["repeats"]):
            begin = time.perf_counter()
            evaluate(
                config, params, kernel, vocab, [features], steps=request["case"]["steps"], head=head
            )
            seconds.append(time.perf_counter() - begin)
    flops = products_per_second(dtype)
    print(json.dumps({"first": seconds[0], "seconds": seconds[1:], "flops": flops}))


if __name__ == "__main__":
    main()
