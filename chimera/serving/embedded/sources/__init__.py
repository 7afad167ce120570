"""Model folders made from other forms of a model: a GGUF file, and models that are known by name."""
