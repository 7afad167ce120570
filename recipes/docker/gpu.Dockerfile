# Chimera with its GPU set (constraints-gpu.txt). NOT YET BUILT: written from the pins. From the repository's root:
#   docker build -f recipes/docker/gpu.Dockerfile -t chimera-gpu .
#   docker run --gpus all --ipc=host -v $PWD/runs:/chimera/runs chimera-gpu python -m chimera doctor
FROM nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04

RUN apt-get update \
    && apt-get install -y --no-install-recommends git python3.12 python3.12-dev python3.12-venv build-essential \
    && rm -rf /var/lib/apt/lists/*
RUN python3.12 -m venv /opt/chimera
ENV PATH=/opt/chimera/bin:$PATH OMP_WAIT_POLICY=PASSIVE

WORKDIR /chimera
COPY constraints-gpu.txt pyproject.toml README.md LICENSE ./
COPY agents agents
COPY chimera chimera
COPY evaluation evaluation
COPY training training
COPY examples examples
COPY configs configs
RUN pip install --no-cache-dir -c constraints-gpu.txt -e .[gpu]
CMD ["python", "-m", "chimera"]
