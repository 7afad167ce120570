"""What each page shows. Read `runs` first; `desk` fills the templates for all of them.

`runs`, `rollouts` and `seats` are the addresses; `choice` filters and sorts rollouts; `phases` and `earlier` say how
far a run is; `figures` and `curves` make numbers and charts; `pairs` puts two runs, two rollouts, or two stages beside
each other.
"""
