"""Where rollouts run: store, gateway, runners, recorder. Read `lab` first.

`bench` is what an algorithm may touch of it; behind that are `branches`, `replays`, `candidates` and `side_calls`.
"""
