"""The viewer: a web page on this machine that shows run directories, also while runs go on. Read `app` first.

`serve` opens it and `guard` decides who may see it. `reading/` follows a run's files as they grow, `pages/` says
what each page shows of them, `seat` starts what a person decides on questions that wait, and `answers` is what
that person may read.
"""
