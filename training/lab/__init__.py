"""Where rollouts run: store, gateway/, runners/, recorder. Read `lab` first. An algorithm sees `training.bench`."""
