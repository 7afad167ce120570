"""What a run has learned for the society as a whole: its graph, and what roles are told."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from agents.context import LearnedSociety
from agents.policies import graph, guidance
from chimera.run.policies import GRAPH, GUIDANCE, SOCIETY, Part, Policy


def of_policies(run: Path, policies: Iterable[Policy]) -> LearnedSociety:
    """What `policies` of the run in the folder `run` hold for the society; raises RunError if it cannot be read."""
    folders = {policy.part: run / policy.folder for policy in policies if policy.target == SOCIETY}
    return LearnedSociety(
        guidance=guidance.load(folders["guidance"]) if "guidance" in folders else {},
        graph=graph.load(folders["graph"]) if "graph" in folders else None,
    )


def of_versions(run: Path, versions: Mapping[str, str]) -> LearnedSociety:
    """The same of the versions in a rollout's record.

    Raises:
        RunError: They name no policy of the run, or it cannot be read.
    """
    parts: dict[str, Part] = {GUIDANCE: "guidance", GRAPH: "graph"}
    policies = (
        Policy.made(part, SOCIETY, versions[key].removeprefix(f"{SOCIETY}@"))
        for key, part in parts.items()
        if key in versions
    )
    return of_policies(run, [Policy.load(policy.dump()) for policy in policies])
