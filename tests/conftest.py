"""Fixtures that several test files share; each area's names start with its own word."""

import asyncio
import copy
import gc
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from message_kit import PROTOCOL

import training  # noqa: F401  before Agent Lightning, which so leaves LiteLLM out
from agents.roles import ROLES
from agents.tools.result import ToolResult
from agents.tools.text.passages import Passage
from chimera.core.types import Brief, Section
from chimera.serving.client import Completion, ToolCall

# Two test files run at a time on two cores. torch's threads that wait for work would keep both cores busy: tests that
# compute would take many times as long. These are read when torch is loaded, also by the commands that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# An example that takes long, or that is slow to make, says something about the machine only.
hypothesis.settings.register_profile(
    "any speed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any speed")


# While the tests' modules are imported, the collector would look through all that was loaded again and again.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Files with few tests start whole runs: they come first, so that no worker is alone with one in the end."""
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: tests[item.path])


async def never(*_):
    """An answer that does not come."""
    await asyncio.Event().wait()


HYPOTHESIS = {"evidence": ["The rate was lower (p=0.01)."], "comparison": "lower", "claim": "It works", "answer": "yes"}
APPROVAL = {"issues": [], "severity": "NONE", "verdict": "APPROVE"}
SOCIETY_ANSWERS: dict[str, dict[str, Any]] = {
    "Geneticist": {**HYPOTHESIS, "claim": "genes"},
    "Pharmacologist": {**HYPOTHESIS, "claim": "drugs"},
    "Neurologist": {**HYPOTHESIS, "claim": "nerves", "answer": "maybe"},
    "Supervisor": {"choice": "Pharmacologist", "justification": "its evidence is about the outcome"},
    "HypothesisRefiner": {**HYPOTHESIS, "claim": "refined"},
    "ProtocolDesigner": PROTOCOL,
    "PeerReviewer": APPROVAL,
    "SafetyOfficer": APPROVAL,
    "PrincipalInvestigator": {
        "amendments": ["report harms"],
        "answer": "yes",
        "decision": "GO",
        "rationale": "the evidence says so",
    },
}
_ROLE_OF_PROMPT = {role.prompt.splitlines()[0]: role.name for role in ROLES.values()}


@dataclass(frozen=True)
class SocietyRequest:
    role: str
    key: str
    messages: list[dict[str, Any]]
    tools: list[Any]
    response_format: Any
    seed: int | None


class ScriptedSocietyModel:
    """Plays each role's script, then its standard answer for ever after.

    A script's items: a dict (a JSON answer), a str (raw text), a list of (tool, arguments) (parallel tool calls;
    arguments that are a str are sent raw), an exception (raised), or an async function (awaited; its result is played).
    """

    def __init__(self, **scripts: list[Any]) -> None:
        self.scripts = {role: list(items) for role, items in scripts.items()}
        self.requests: list[SocietyRequest] = []

    def of(self, role: str) -> list[SocietyRequest]:
        return [request for request in self.requests if request.role == role]

    async def complete(self, key, messages, *, tools=(), response_format=None, seed=None):
        role = _ROLE_OF_PROMPT[messages[0]["content"].splitlines()[0]]
        request = SocietyRequest(role, key, copy.deepcopy(list(messages)), list(tools), response_format, seed)
        self.requests.append(request)
        number = len(self.requests)
        script = self.scripts.get(role)
        item = script.pop(0) if script else SOCIETY_ANSWERS[role]
        while callable(item):
            item = await item()
        if isinstance(item, Exception):
            raise item
        return society_completion(item, f"answer-{number}")


def society_completion(item: Any, name: str = "answer-1", finish_reason: str = "stop") -> Completion:
    calls: tuple[ToolCall, ...] = ()
    content = item if isinstance(item, str) else json.dumps(item)
    if isinstance(item, list):
        content = ""
        calls = tuple(
            ToolCall(
                f"{name}-{position}",
                tool,
                None if isinstance(arguments, str) else arguments,
                arguments if isinstance(arguments, str) else json.dumps(arguments),
            )
            for position, (tool, arguments) in enumerate(item)
        )
    message: dict[str, Any] = {"role": "assistant", "content": content or None}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.raw_arguments}}
            for call in calls
        ]
    return Completion(message, content, calls, finish_reason, 10, 5, name, "v1")


@dataclass
class FakeToolbox:
    """One passage a call, whose id is the query; `texts` overrides the text of a query's passage."""

    texts: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def specs(self, names):
        return [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]

    async def call(self, name, arguments, *, brief):
        self.calls.append((name, dict(arguments)))
        await asyncio.sleep(0)
        query = arguments.get("query", "nothing")
        text = self.texts.get(query, f"Passage about {query}.")
        return ToolResult(name, ok=True, passages=(Passage(query, f"Title of {query}", text),))


@pytest.fixture(scope="session")
def society_kit():
    """Stateless: the scripted model, the toolbox, standard answers, a brief, and `make` for a `Society` of them."""
    from agents.society import Society
    from chimera.config.roles import RolesConfig
    from chimera.config.sections.society import SocietyConfig

    brief = Brief(
        "17", "Does the drug lower the rate?", (Section("METHODS", "A trial."), Section("RESULTS", "It fell."))
    )

    async def evaluate(state, _brief):
        return {"fields": sorted(state)}

    def make(model, toolbox=None, *, evaluate=evaluate, **config):
        extras = {name: config.pop(name, None) for name in ("operation", "observe", "select", "timeout_s")}
        extras = {name: value for name, value in extras.items() if value is not None}
        # The standard answers quote a sentence that nobody has read.
        config = {"quotes": "free", "refiner_max_chars": 0, **config}
        roles = RolesConfig()
        return Society(model, toolbox or FakeToolbox(), SocietyConfig(**config), roles, evaluate=evaluate, **extras)

    return SimpleNamespace(
        Model=ScriptedSocietyModel,
        Toolbox=FakeToolbox,
        completion=society_completion,
        answers=SOCIETY_ANSWERS,
        approval=APPROVAL,
        brief=brief,
        make=make,
        evaluate=evaluate,
    )


def _serving_model(
    folder, *, seed=0, tied=True, kv_heads=2, layers=2, vocab=512, context=2048, scale=1.0, template=None
):
    """A random Qwen2 model with a byte-level BPE tokenizer and a ChatML template, saved like a Hugging Face model."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    heads, dim, inner = 4, 8, 48
    hidden = heads * dim
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = 'You are the Geneticist. system user assistant {"evidence":["the rate was lower, p=0.01"],"answer":"yes"}'
    tokenizer.train_from_iterator([text, text.lower()] * 4, trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in ("<tool_call>", "</tool_call>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    (folder / "chat_template.jinja").write_text(template or SERVING_TEMPLATE)
    generator = torch.Generator().manual_seed(seed)
    kv = kv_heads * dim
    sizes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not tied:
        sizes["lm_head.weight"] = (vocab, hidden)
    for layer in range(layers):
        at = f"model.layers.{layer}."
        for part, width in (("q", hidden), ("k", kv), ("v", kv)):
            sizes[f"{at}self_attn.{part}_proj.weight"] = (width, hidden)
            sizes[f"{at}self_attn.{part}_proj.bias"] = (width,)
        sizes[f"{at}self_attn.o_proj.weight"] = (hidden, hidden)
        sizes[f"{at}mlp.gate_proj.weight"] = sizes[f"{at}mlp.up_proj.weight"] = (inner, hidden)
        sizes[f"{at}mlp.down_proj.weight"] = (hidden, inner)
        sizes[f"{at}input_layernorm.weight"] = sizes[f"{at}post_attention_layernorm.weight"] = (hidden,)
    weights = {
        name: torch.ones(size) + 0.1 * torch.randn(size, generator=generator)
        if "norm" in name
        else scale * torch.randn(size, generator=generator) * 0.3
        for name, size in sizes.items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


SERVING_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}"
    "{% for call in message.tool_calls or [] %}"
    '{{ \'<tool_call>{"name":"\' + call.function.name + \'","arguments":\' }}'
    "{{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}"
    "{{ '}</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def serving_model(tmp_path_factory):
    """Stateless: `serving_model(seed=.., tied=..)` is the folder of a random 60,000-parameter Qwen2 model."""
    folders: dict[str, Any] = {}

    def make(**options):
        key = repr(sorted(options.items()))
        if key not in folders:
            folders[key] = _serving_model(tmp_path_factory.mktemp("qwen2"), **options)
        return folders[key]

    return make


class ScriptedOpenAI:
    """Answers every role over HTTP. `hooks` are asked first, in order: a hook takes the request and gives None (not
    mine), an answer (dict), raw text (str), (status, message or body, headers...) for an error, or `never()`. Every
    request is kept in `requests`. `response_id` is what all answers have as their id; None: each has its own."""

    never = staticmethod(never)

    def __init__(self) -> None:
        self.hooks: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.tokens: dict[str, tuple[list[int], list[int]]] = {}
        self.url = ""
        self.response_id: str | None = None

    def tokens_of(self, response_id):
        """Prompt and answer of a response. Its id may have been made unique, which keeps the server's at its front."""
        return self.tokens["-".join(response_id.split("-")[:2])]

    @staticmethod
    def goal(request):
        return json.loads(request["messages"][1]["content"])["goal"]

    @staticmethod
    def role(request):
        return request["messages"][0]["content"].partition(".")[0].removeprefix("You are the ")

    @staticmethod
    def justified(request):
        """A hook: the supervisor justifies what a policy has chosen."""
        chosen = json.loads(request["messages"][1]["content"]).get("chosen")
        return {"choice": chosen, "justification": "it was chosen"} if chosen else None

    async def answer(self, request):
        self.requests.append(request)
        found = None
        for hook in self.hooks:
            found = found if found is not None else hook(request)
        if asyncio.iscoroutine(found):
            found = await found
        if isinstance(found, tuple):
            return found
        if found is None and request.get("tools") and request["messages"][-1]["role"] == "user":
            found = [("literature_search", {"query": self.goal(request)})]
        elif found is None:
            found = self.standard(request)
        completion = society_completion(found)
        number = len(self.tokens)
        name = f"scripted-{number}"
        self.tokens[name] = ([1000 + number, 7, 8], [2000 + number, 9])
        prompt_ids, response_ids = self.tokens[name]
        message = {"tool_calls": None, **completion.message}
        choice = {
            "index": 0,
            "message": message,
            "token_ids": response_ids,
            "finish_reason": "tool_calls" if completion.tool_calls else "stop",
        }
        return 200, {
            "id": name if self.response_id is None else self.response_id,
            "object": "chat.completion",
            "created": 1,
            "model": request["model"],
            "weights_version": f"weights-of-{request['model']}",
            "prompt_token_ids": prompt_ids,
            "choices": [choice],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        }

    def standard(self, request):
        role = self.role(request)
        if role not in SOCIETY_ANSWERS:
            criteria = ("novelty", "feasibility", "impact", "clarity", "groundedness", "efficiency")
            return dict.fromkeys(criteria, 0.5)
        if "evidence" in SOCIETY_ANSWERS[role] and request["messages"][-1]["role"] == "tool":
            text = json.loads(request["messages"][-1]["content"])["results"][0]["text"]
            return {**HYPOTHESIS, "evidence": [" ".join(text.split()[:8])]}
        return SOCIETY_ANSWERS[role]


@pytest.fixture(scope="module")
def scripted_openai():
    """A running `ScriptedOpenAI`; its `url` ends in /v1."""
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse
    from web_kit import serving

    scripted, app = ScriptedOpenAI(), FastAPI()

    async def chat(request: Request):
        status, body, *headers = await scripted.answer(await request.json())
        body = {"error": {"message": body}} if isinstance(body, str) else body
        return JSONResponse(body, status_code=status, headers=dict(headers))

    app.post("/v1/chat/completions")(chat)
    with serving(app) as address:
        scripted.url = f"{address}/v1"
        yield scripted


def make_scripted_run(folder, server):
    """A run in `folder` that has learned nothing, whose models are all the scripted server: four held-out tasks."""
    from chimera.config.sections.models import SLOTS
    from chimera.run.directory import Run
    from training.configuration import load_config

    keys = list(SLOTS)
    settings = {"kind": "endpoint", "base_url": server.url, "api_key_env": "TEST_KEY", "timeout_s": 3600}
    models = [f"models.{key}.{name}={value}" for key in keys for name, value in settings.items()]
    names = [f"models.{key}.model=scripted-{key}" for key in keys]
    few = [
        "data.size=40",
        "gate.tasks=4",
        "society.node_retries=0",
        "society.quotes=free",
        "society.refiner_max_chars=0",
    ]
    few += ["evaluation.resamples=20"]
    with Run.create("scripted", load_config(None, [*models, *names, *few, f"runs_dir={folder}"])) as run:
        began = {**{key: f"scripted-{key}" for key in keys}, "selection": "supervisor's model"}
        run.ledger("phase_started", phase="gather", policy_versions=began)
    return Run(run.path)


@pytest.fixture(scope="session")
def scripted_run_in():
    return make_scripted_run


@pytest.fixture
def scripted_key(monkeypatch):
    monkeypatch.setenv("TEST_KEY", "sk-a-users-own-key-4242")
    monkeypatch.delenv("TAVILY_API_KEY", raising=False)


@pytest.fixture
def scripted_run(scripted_openai, scripted_key, tmp_path):
    """A new run of `make_scripted_run`; the server has no hooks and has seen no requests."""
    scripted_openai.hooks.clear()
    scripted_openai.requests.clear()
    yield make_scripted_run(tmp_path, scripted_openai)
    scripted_openai.hooks.clear()
