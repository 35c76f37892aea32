"""Finding models and bringing them: the catalogue, pull, GGUF files, loading, and what a loaded model is made of."""
