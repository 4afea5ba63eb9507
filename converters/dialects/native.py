"""This project's own form: everything is expressed, nothing is renamed."""

from converters.dialects.base import Dialect

NATIVE = Dialect(
    name="native",
    title="eagle3-jax's own checkpoint (Orbax and JSON)",
    source="eagle3_jax/checkpoints.py",
    architecture="Drafter",
    latent_architecture="Drafter",
    first_layer="layers.0.",
    numbering="boundary",
    ids="top",
    default_capture=False,
    tied_head=True,
    borrowed_head=True,
)
