"""The embedded server without its process or socket, and the files of the models that it serves."""

import json
from contextlib import closing, contextmanager

import httpx
from tokenizers import Tokenizer

from chimera.config.sections.models import ModelConfig, ServingConfig
from chimera.serving.embedded.app import create_app
from chimera.serving.embedded.service import Service

KEY = "right-key"
AUTHORIZATION = {"Authorization": f"Bearer {KEY}"}
PLAIN_TEMPLATE = """{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content }}
{{- '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""ChatML as SmolLM2 has it: it knows no tools."""


@contextmanager
def embedded(models, **serving):
    """The service of models by their slots, or of the one in a folder as junior; unless told, it keeps no answers."""
    models = models if isinstance(models, dict) else {"junior": ModelConfig(path=str(models))}
    with closing(Service(models, ServingConfig(**{"answers": 0, **serving}))) as service:
        yield service


def client_of(service, headers=AUTHORIZATION):
    """A client of the service's application."""
    transport = httpx.ASGITransport(create_app(service, KEY), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers)


def log_probs(model, answer, choice):
    """What transformers' `model` gives each token at each place of a choice, and the choice's own tokens."""
    import torch

    prompt, tokens = answer["prompt_token_ids"], choice["token_ids"]
    with torch.inference_mode():
        logs = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return logs, logs.gather(1, torch.tensor(tokens)[:, None])[:, 0]


def without_tags(tokenizer):
    """The tokenizer without tokens for tool calls."""
    settings = json.loads(tokenizer.to_str())
    settings["added_tokens"] = [token for token in settings["added_tokens"] if "tool" not in token["content"]]
    return Tokenizer.from_str(json.dumps(settings))


def change(file, **changes):
    """Give members of the object in a JSON file other values."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
