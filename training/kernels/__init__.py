"""Parts of a model's forward pass that take less memory or time, for every way to train."""
