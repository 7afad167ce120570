"""Where rollouts run: workers, Agent Lightning's store, records. An algorithm sees `training.bench`."""
