"""A model's weights in files, and parts of its forward pass that take less memory or time."""
