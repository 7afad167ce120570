"""The sampler against its own definition, without a model."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.serving.embedded.decoding.sampling import choose, nucleus, penalise


def sample(logits, temperature, top_p, uniform, allowed=None):
    return choose(
        torch.tensor(logits),
        torch.tensor(temperature),
        None if top_p is None else torch.tensor(top_p),
        torch.tensor(uniform, dtype=torch.float64),
        None if allowed is None else torch.tensor(allowed),
        want_log_probs=True,
    )


def test_tokens_come_in_the_proportions_of_their_probabilities():
    logits = [0.3, -1.0, 2.0, 0.0]
    uniform = (np.arange(4000) + 0.5) / 4000
    tokens, log_probs = sample([logits] * 4000, [0.7] * 4000, None, uniform)
    expected = torch.softmax(torch.tensor(logits) / 0.7, -1)
    counted = torch.bincount(tokens, minlength=4) / 4000
    assert counted.tolist() == pytest.approx(expected.tolist(), abs=1e-3)
    assert log_probs is not None
    assert log_probs[0].exp().tolist() == pytest.approx(expected.tolist(), abs=1e-5)


@settings(max_examples=100, deadline=None)
@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12),
    top_p=st.floats(0.01, 1),
    uniform=st.floats(0, 1, exclude_max=True),
    temperature=st.floats(0.1, 2),
    data=st.data(),
)
def test_sampling_respects_mask_and_nucleus(logits, top_p, uniform, temperature, data):
    allowed = data.draw(st.lists(st.booleans(), min_size=len(logits), max_size=len(logits)).filter(any))
    tokens, log_probs = sample([logits] * 2, [temperature, 0.0], [top_p, top_p], [uniform] * 2, [allowed] * 2)
    drawn, greedy = tokens.tolist()
    assert allowed[drawn]
    assert allowed[greedy]
    best = max(value for value, ok in zip(logits, allowed, strict=True) if ok)
    assert logits[greedy] == best
    masked = torch.tensor(logits).masked_fill(~torch.tensor(allowed), float("-inf"))
    probabilities = torch.softmax(masked / temperature, -1)
    more_likely = probabilities[probabilities > probabilities[drawn]].sum()
    assert float(more_likely) < top_p + 1e-5
    assert log_probs is not None
    assert float(log_probs[0, drawn]) > float("-inf")
    assert float(log_probs[1, greedy]) == 0.0


def test_nucleus_keeps_the_smallest_sufficient_set():
    kept = nucleus(torch.tensor([[0.1, 0.5, 0.25, 0.15]] * 3), torch.tensor([0.4, 0.7, 1.0]))
    assert kept.tolist() == pytest.approx(
        np.array([[0, 0.5, 0, 0], [0, 0.5, 0.25, 0], [0.1, 0.5, 0.25, 0.15]]), abs=1e-6
    )


@settings(max_examples=100, deadline=None)
@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12, unique=True),
    top_k=st.integers(1, 12),
    min_p=st.floats(0, 1),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_a_drawn_token_is_among_the_likeliest(logits, top_k, min_p, uniform):
    one, none = torch.ones(1), torch.tensor([uniform], dtype=torch.float64)
    rules = {"top_k": torch.tensor([top_k]), "min_p": torch.tensor([min_p])}
    tokens, log_probs = choose(torch.tensor([logits]), one, None, none, None, want_log_probs=True, **rules)
    probabilities = torch.softmax(torch.tensor(logits), -1)
    drawn = probabilities[tokens[0]]
    assert int((probabilities > drawn).sum()) < top_k
    assert float(drawn) >= min_p * float(probabilities.max()) - 1e-6
    assert log_probs is not None
    assert float(log_probs.exp().sum()) == pytest.approx(1, abs=1e-5)


def test_tokens_that_were_written_become_less_likely():
    assert penalise(torch.tensor([2.0, -2.0, 2.0, 0.0]), torch.tensor([0, 1]), 2.0).tolist() == [1.0, -4.0, 2.0, 0.0]
