"""Credit of calls, and advantages."""
