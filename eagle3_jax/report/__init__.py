"""Pictures of results, and a diagnosis as one page."""

from eagle3_jax.report.diagnosis import PICTURES, Picture, draw_diagnosis, render_diagnosis
from eagle3_jax.report.pictures import draw_lengths, draw_norms, draw_readings, save_picture

__all__ = [
    "PICTURES",
    "Picture",
    "draw_diagnosis",
    "draw_lengths",
    "draw_norms",
    "draw_readings",
    "render_diagnosis",
    "save_picture",
]
