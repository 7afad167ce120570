"""Where rollouts run: workers, Agent Lightning's store, records. Read `lab` first. An algorithm sees `training.bench`."""
