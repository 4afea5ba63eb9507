"""A real draft of a real target: SmolLM2-135M-Instruct, Q4_1 dequantised."""
