"""Terminal output and pictures of the commands."""
