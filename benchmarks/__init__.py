"""Scripts that build, train and measure; run from a checkout, not part of the wheel."""
