"""The rows of a batch on several devices: the same counts as on one, and no talk between them."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.batches import batches
from eagle3_jax.evaluate import evaluate
from eagle3_jax.heads import TargetHead
from eagle3_jax.metrics import Counts
from tests.conftest import random_params, tiny_config
from tests.samples import TABLE, texts, tiny_draft

STEPS = 3
DEVICES = 8
ROOT = Path(__file__).resolve().parents[1]


def batched():
    """Batches of five rows, which eight devices do not share evenly; the last is mostly padding."""
    for batch in batches(texts(), slots=(0, 1, 2), last=3, table=TABLE, columns=80, bucket=16):
        rows = min(5, len(batch.ids))
        yield jax.tree.map(lambda x, rows=rows: x[:rows], batch)


def counted(*, target: bool) -> Counts:
    draft = tiny_draft()
    params = jax.tree.map(jnp.asarray, draft.params)
    kernel = jnp.asarray(np.random.default_rng(4).normal(size=(8, 32)), jnp.float32)
    head = TargetHead(kernel, jnp.ones(8), 1e-5) if target else None
    with jax.default_matmul_precision("highest"):
        return evaluate(
            draft.config,
            params,
            params["lm_head"]["kernel"],
            draft.vocab,
            batched(),
            steps=STEPS,
            head=head,
        )


ON_MANY = """
import sys
import jax
import numpy as np
from tests.test_devices import DEVICES, counted, program
assert jax.local_device_count() == DEVICES
for target in (False, True):
    parts = counted(target=target)
    np.savez(f"{sys.argv[1]}/{target}.npz", **parts._asdict())
with open(f"{sys.argv[1]}/program.txt", "w") as file:
    file.write(program())
"""


def program() -> str:
    """What the devices run, compiled, for eight rows."""
    from jax.sharding import Mesh

    from eagle3_jax.evaluate import _counted

    config = tiny_config()
    params = random_params(config)
    [batch] = batches(
        [text._replace(ids=text.ids % 32) for text in texts()[:1]],
        slots=(0, 1, 2),
        table=TABLE,
        columns=512,
        bucket=64,
    )
    shared = (params, params["lm_head"]["kernel"], jnp.zeros(32, int), None, None)
    mesh = Mesh(np.array(jax.local_devices()), ("rows",))
    text = _counted.lower(mesh, config, 2, shared, batch).compile().as_text()
    assert text is not None
    return text


@pytest.fixture(scope="module")
def on_many(tmp_path_factory):
    place = tmp_path_factory.mktemp("devices")
    flags = f"--xla_force_host_platform_device_count={DEVICES}"
    done = subprocess.run(
        [sys.executable, "-c", ON_MANY, str(place)],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.parametrize("target", [False, True])
def test_eight_devices_count_what_one_counts(on_many, target):
    alone = counted(target=target)
    together = np.load(on_many / f"{target}.npz")
    assert len(alone.total) == len(texts())
    assert alone.joint.sum() > 0
    for name, numbers in alone._asdict().items():
        if name == "agreement":
            np.testing.assert_allclose(together[name], numbers, 1e-5, 1e-6)
        else:
            np.testing.assert_array_equal(together[name], numbers, err_msg=name)


def test_devices_do_not_wait_for_each_other(on_many):
    text = (on_many / "program.txt").read_text()
    assert f"num_partitions={DEVICES}" in text
    for talk in ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert talk not in text


def test_two_runs_are_equal_to_the_last_bit():
    for one, other in zip(counted(target=True), counted(target=True), strict=True):
        np.testing.assert_array_equal(one, other)
