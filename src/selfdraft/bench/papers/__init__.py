"""The papers' experiments at the scale of a model: one recipe per paper, published numbers beside ours, never mixed."""
