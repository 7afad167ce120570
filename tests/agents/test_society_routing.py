import itertools
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agents.routing import revisions_allowed, route, worst_severity
from chimera.config.sections.society import SocietyConfig
from chimera.core.types import Severity, Verdict

# Verdict and severity as a reviewer gives them -> the severity that the review counts with.
COUNTS_AS = {
    ("APPROVE", "NONE"): "NONE",
    ("APPROVE", "MINOR"): "MINOR",
    ("APPROVE", "MAJOR"): "MAJOR",
    ("APPROVE", "CRITICAL"): "CRITICAL",
    ("REVISE", "NONE"): "MAJOR",
    ("REVISE", "MINOR"): "MAJOR",
    ("REVISE", "MAJOR"): "MAJOR",
    ("REVISE", "CRITICAL"): "CRITICAL",
}
# Both reviews' effective severities -> the next role while revisions are left.
NEXT = {
    ("NONE", "NONE"): "PrincipalInvestigator",
    ("NONE", "MINOR"): "PrincipalInvestigator",
    ("NONE", "MAJOR"): "ProtocolDesigner",
    ("NONE", "CRITICAL"): "HypothesisRefiner",
    ("MINOR", "MINOR"): "PrincipalInvestigator",
    ("MINOR", "MAJOR"): "ProtocolDesigner",
    ("MINOR", "CRITICAL"): "HypothesisRefiner",
    ("MAJOR", "MAJOR"): "ProtocolDesigner",
    ("MAJOR", "CRITICAL"): "HypothesisRefiner",
    ("CRITICAL", "CRITICAL"): "HypothesisRefiner",
}
REVIEWS = sorted(COUNTS_AS)


def review(form):
    return {"issues": [], "verdict": form[0], "severity": form[1]}


def expected_next(peer, safety):
    pair = (COUNTS_AS[peer], COUNTS_AS[safety])
    return NEXT.get(pair) or NEXT[pair[::-1]]


def test_the_table_covers_every_verdict_and_severity():
    assert set(REVIEWS) == set(itertools.product(get_args(Verdict), get_args(Severity)))


@pytest.mark.parametrize(("peer", "safety"), itertools.product(REVIEWS, REVIEWS))
async def test_every_pair_of_reviews_in_the_real_graph(society_kit, peer, safety):
    model = society_kit.Model(PeerReviewer=[review(peer)], SafetyOfficer=[review(safety)])
    nodes = [node async for node, _ in society_kit.make(model).stream(society_kit.brief)]
    first_review = nodes.index("SafetyOfficer")
    assert nodes[first_review + 1] == expected_next(peer, safety)


caps = st.integers(0, 4)


@given(st.lists(st.sampled_from(get_args(Severity)), max_size=20), caps, caps)
@example(["CRITICAL", "MAJOR", "CRITICAL"], 1, 1)  # each loop has its own cap
@example(["CRITICAL"], 0, 4)  # a CRITICAL is never downgraded to the designer's loop
def test_no_sequence_of_reviews_revises_beyond_the_caps(severities, critical, major):
    config = SocietyConfig(max_critical_revisions=critical, max_major_revisions=major)
    used = {"CRITICAL": 0, "MAJOR": 0}
    for worst in severities:
        step = route(worst, critical_used=used["CRITICAL"], major_used=used["MAJOR"], config=config)
        if step == "DECIDE":
            assert worst in ("NONE", "MINOR") or used[worst] == {"CRITICAL": critical, "MAJOR": major}[worst]
            break
        assert step == worst
        used[step] += 1
    assert used["CRITICAL"] <= critical
    assert used["MAJOR"] <= major
    assert sum(used.values()) <= revisions_allowed(config)


def test_the_worst_review_decides_whatever_the_order():
    order = get_args(Severity)
    for pair in itertools.product(REVIEWS, REVIEWS):
        worst = worst_severity(*map(review, pair))
        assert order.index(worst) == max(order.index(COUNTS_AS[form]) for form in pair), pair
