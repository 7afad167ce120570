"""What the tests of the PPO engine share: samples, its weights, and the same model computed by hand."""

from contextlib import contextmanager

import numpy as np

from chimera.serving.embedded.checkpoint import load_checkpoint
from training.ppo.engine.batch import Sample
from training.ppo.engine.update import PpoEngine
from training.ppo.verl.runtime import no_progress_bars
from training.ppo.verl.settings import DEFAULTS, PpoSettings


def ppo_settings(**options):
    """Settings whose options are keys of ours, or VeRL's own keys of any part."""
    passed = options.pop("verl", {})
    verl = {part: {name: options.pop(name) for name in keys if name in options} for part, keys in DEFAULTS.items()}
    verl |= {part: verl.get(part, {}) | values for part, values in passed.items()}
    return PpoSettings(verl={part: values for part, values in verl.items() if values}, **options)


def small_steps(**options):
    """`ppo_settings` of which `some_samples` make two optimiser steps."""
    return ppo_settings(**{"lr": 1e-3, "ppo_mini_batch_size": 8, "entropy_coeff": 0.01} | options)


@contextmanager
def one_at_a_time(serving_model, device="auto"):
    """Opens one engine at a time, which is this process; the last one is closed at the end."""
    opened = []

    def open_(config=None, *, folder=None, total_steps=20, temperature=1.0, phase="ppo", **options):
        if opened:
            opened.pop().close()
        config, folder = config or small_steps(**options), folder or serving_model(seed=3)
        of_phase = {"seed": 0, "total_steps": total_steps, "temperature": temperature, "phase": phase}
        opened.append(PpoEngine(folder, config, device=device, **of_phase))
        return opened[0]

    yield open_
    for engine in opened:
        engine.close()


def some_samples(seed, count=12, peers=3):
    numbers = np.random.default_rng(seed)
    ids = [tuple(numbers.integers(0, 400, length).tolist()) for length in numbers.integers(2, 40, 2 * count)]
    rewards = numbers.normal(size=count).tolist()
    return [
        Sample(ids[place], ids[count + place], rewards[place], f"g{place // peers}", f"t{place}")
        for place in range(count)
    ]


def exported(engine, folder):
    engine.export(folder)
    return load_checkpoint(str(folder)).weights


def untimed(metrics):
    """An update's figures, but for times, memory and throughput."""
    return {name: value for name, value in metrics.items() if not name.startswith(("perf/", "timing_s/"))}


def apart(weights, expected):
    """The largest difference between two models' weights."""
    return max(float((weights[name] - value).abs().max()) for name, value in expected.items())


def hugging_face(folder):
    import torch
    from transformers import AutoModelForCausalLM

    with no_progress_bars():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def log_softmax(model, sample, temperature=1.0):
    """(response tokens, vocabulary), from one unpacked forward pass."""
    import torch

    ids = torch.tensor([sample.prompt_ids + sample.response_ids])
    return torch.log_softmax(model(ids).logits[0, len(sample.prompt_ids) - 1 : -1] / temperature, dim=-1)


def chosen(logs, sample):
    import torch

    return logs.gather(1, torch.tensor(sample.response_ids)[:, None])[:, 0]
