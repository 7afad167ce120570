"""Who earned what: credit of calls, and advantages."""
