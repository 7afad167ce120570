"""The viewer: a web page on this machine that shows run directories, also while runs go on. Read `app` first.

`growing`, `rows`, `watched` and `folder` read a run's files as they grow; `choice`, `figures`, `phases`, `earlier`,
`verdicts` and `curves` say what a page shows of them; `desk` and the modules `*_pages` make the pages; `guard` decides
who may see them; `seat` and `told` are about questions that wait for a person.
"""
