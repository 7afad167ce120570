"""Who works in the society, by search over typed edits of its graph with successive halving (after AFlow).

    tried: the live graph. Repeat: all one-edit neighbours of the best graph that are new
        play a quarter of the search share, keep the better half; play half of it, keep the better half; play it all
    until no neighbour of the best is better, or enough graphs were tried; what is right as often with fewer tokens wins

Source: Zhang et al. 2025, "AFlow: Automating agentic workflow generation"; Jamieson and Talwalkar 2016 for the halving.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations
from statistics import fmean
from typing import Any, ClassVar

from pydantic import Field, ValidationError

from agents.policies.graph import FILE, dump
from chimera.config.roles import JUNIORS
from chimera.config.sections.graph import GraphConfig
from chimera.config.tree import Config
from chimera.data.tasks import Dataset
from chimera.run.policies import Part
from evaluation.records.rollouts import RolloutRecord
from training.guidance.budget import BudgetSpentError
from training.guidance.search import Scores, Search, SearchSettings, check_search, right_share
from training.learning.base import Bench, Learned, PhasePlan, live_graph

RUNGS = (0.25, 0.5)
"""Shares of the search share on which the better half of the candidates is kept."""


class AflowSettings(SearchSettings):
    """Edits of the society's graph: juniors, debate, vote or choice, refiner, and what `waives` allows to leave out."""

    graphs: int = Field(default=25, ge=2, le=10_000, description="graphs that are tried, on few tasks or on all")

    def needs_rollouts(self) -> bool:
        return False

    def most(self) -> str:
        return super().most() or f"{self.graphs * self.tasks:,} rollouts"


class GraphSearch(Search[GraphConfig]):
    """A search over graphs: of those that are right equally often, the one with the fewest tokens is better."""

    def score(self, records: Sequence[RolloutRecord]) -> Scores:
        return right_share(records), -tokens(records)


class Aflow:
    """Searches over graphs."""

    Settings = AflowSettings
    part: ClassVar[Part | None] = "graph"

    def check(self, plan: PhasePlan, settings: AflowSettings, config: Config, dataset: Dataset) -> None:
        check_search(plan, settings, config, dataset)

    async def learn(self, plan: PhasePlan, settings: AflowSettings, bench: Bench) -> Learned:
        start = live_graph(bench)
        earlier = [episode.record for episode in await bench.episodes()]
        search = GraphSearch(plan, settings, bench, earlier, part="graph", file=FILE, dump=dump, start=start)
        tried = {dump(start)}
        pareto: list[tuple[GraphConfig, Scores]] = []
        with suppress(BudgetSpentError):
            pareto.append((start, search.score(await search.trial(start))))
            while len(tried) < settings.graphs:
                untried = [graph for graph in neighbours(search.best) if dump(graph) not in tried]
                if not (new := untried[: settings.graphs - len(tried)]):
                    break
                tried.update(map(dump, new))
                before = search.best
                for graph in await halved(search, new):
                    pareto.append((graph, search.score(await search.trial(graph))))
                if search.best == before:
                    break
        figures = {"graphs": len(tried), "pareto": [shown(graph, score) for graph, score in frontier(pareto)]}
        return search.learned(figures)


async def halved(search: GraphSearch, graphs: Sequence[GraphConfig]) -> list[GraphConfig]:
    """The graphs that are worth all tasks of the search share: the better half on few tasks, twice."""
    for share in RUNGS:
        tasks = search.tasks[: max(2, round(share * len(search.tasks)))]
        scored = [(search.score(await search.play(graph, tasks)), place) for place, graph in enumerate(graphs)]
        best = sorted(scored, reverse=True)[: -(-len(graphs) // 2)]
        graphs = [graphs[place] for _, place in best]
    return list(graphs)


def neighbours(graph: GraphConfig) -> Iterator[GraphConfig]:
    """All valid graphs that differ from `graph` by one edit, those with fewer model calls first."""
    juniors = [names for size in range(1, len(JUNIORS) + 1) for names in combinations(JUNIORS, size)]
    edits: list[dict[str, Any]] = [
        *({"juniors": names} for names in juniors if abs(len(names) - len(graph.juniors)) <= 1),
        *({"juniors": names, "debate": 0} for names in juniors if len(names) == 1 and graph.debate),
        *({"choose": choose} for choose in ("vote", "select")),
        *({field: value} for field in ("refine", "reviews", "design") for value in (False, True)),
        *({"debate": rounds} for rounds in (graph.debate - 1, graph.debate + 1)),
    ]
    for edit in edits:
        try:
            neighbour = GraphConfig.model_validate({**graph.model_dump(), **edit})
        except ValidationError:
            continue
        if neighbour != graph:
            yield neighbour


def frontier(graphs: Sequence[tuple[GraphConfig, Scores]]) -> list[tuple[GraphConfig, Scores]]:
    """The Pareto set: those that no other is right at least as often as with fewer tokens. Cheap ones first."""
    ordered = sorted(graphs, key=lambda entry: (-entry[1][1], -entry[1][0]))
    best, kept_graphs = -1.0, list[tuple[GraphConfig, Scores]]()
    for graph, score in ordered:
        if score[0] > best:
            best = score[0]
            kept_graphs.append((graph, score))
    return kept_graphs


def shown(graph: GraphConfig, score: Scores) -> dict[str, Any]:
    """A graph's edits of the default one, with what it gives and takes."""
    return {"graph": graph.model_dump(exclude_defaults=True), "right": score[0], "tokens": round(-score[1])}


def tokens(records: Sequence[RolloutRecord]) -> float:
    """Mean number of tokens that the society reads and writes for one task."""
    return fmean(sum(side for used in record.tokens.values() for side in used.values()) for record in records)
