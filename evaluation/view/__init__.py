"""The viewer: a web page on this machine that shows run directories, also while runs go on. Read `app` first.

`growing`, `rows`, `choice`, `watched` and `folder` read a run's files as they grow; `phases`, `verdicts` and `pairs`
make figures of them; `drawing` draws; `app`, `guard` and `pages` serve; `seat` passes a person's verdict on.
"""
