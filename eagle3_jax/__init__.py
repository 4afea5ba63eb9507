"""The reference EAGLE-3 draft model in JAX."""
