#!/usr/bin/env bash
# configs/smollm2.yaml on one GPU: three training seeds with larger numbers, evaluated beside the plain baselines.
# Arguments go to `python -m chimera.study`, such as data.path=/path/to/ori_pqal.json where the hub cannot be reached.
# Nobody has run the whole of it on a GPU yet; docs/lab-notes.md says which parts ran there.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec "${PYTHON:-.venv/bin/python}" -m chimera.study --name smollm2 --seeds 3 --stages base,final \
    --config configs/smollm2.yaml serving.slots=64 rollouts.concurrency=48 gate.tasks=100 \
    gather.tasks=200 sft.batch_size=16 sft.micro_batch_size=16 \
    ppo.states=32 ppo.n=8 ppo.steps=6 ppo.ppo_mini_batch_size=64 evaluation.labels=true "$@"
