"""Step DPO: of two answers to one prompt the better one is preferred. Read `phase` first."""
