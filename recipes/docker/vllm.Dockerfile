# The image of gpu.Dockerfile with vLLM in an environment of its own, for models.X.python=/opt/vllm/bin/python. vLLM's needs
# and Chimera's do not fit into one environment, and its routes that take new weights were tried with 0.32. NOT YET BUILT:
#   docker build -f recipes/docker/vllm.Dockerfile -t chimera-vllm .
#   docker run --gpus all --ipc=host chimera-vllm python -m chimera.train --config configs/one_gpu.yaml
ARG BASE=chimera-gpu
FROM ${BASE}

RUN python3.12 -m venv /opt/vllm && /opt/vllm/bin/pip install --no-cache-dir vllm==0.32.0
