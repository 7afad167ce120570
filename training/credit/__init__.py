"""Credit of calls, values of further answers to one prompt, and advantages."""
