"""What the commands draw in a terminal or as a picture."""
