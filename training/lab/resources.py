"""What a rollout is told about the models: gateway address, logical name, sampling and policy version of each.

They travel as Agent Lightning resources: a rollout is enqueued with the id of the resources it must use, so it carries
the policy versions that produced it.
"""

import json
from collections.abc import Mapping

import agentlightning as agl

from agents.policies.choice import SelectionSpec
from chimera.config.sections.models import ModelConfig
from chimera.core.errors import RunError
from chimera.run.policies import SELECTION
from chimera.serving.client import Endpoint

VERSION = "policy_version"


def describe(
    gateway_url: str,
    models: Mapping[str, ModelConfig],
    versions: Mapping[str, str],
    selection: SelectionSpec,
    candidates: Mapping[str, str] | None = None,
) -> agl.NamedResources:
    """One `ProxyLLM` for each slot in `versions` (slot -> version), and who chooses among hypotheses.

    `candidates` names the model to ask for where a slot's live weights are not to answer.

    Agent Lightning has no resource for a policy that is not a model, so who chooses travels as a prompt template: its
    text is JSON.
    """
    choice = agl.PromptTemplate(template=json.dumps(selection.dump()), engine="f-string")
    slots: agl.NamedResources = {
        name: agl.ProxyLLM(
            endpoint=f"{gateway_url}/v1",
            model=(candidates or {}).get(name, name),
            sampling_parameters={
                "temperature": models[name].temperature,
                "top_p": models[name].top_p,
                "max_tokens": models[name].max_tokens,
                VERSION: version,
            },
        )
        for name, version in versions.items()
        if name in models
    }
    return {**slots, SELECTION: choice}


def endpoints(
    resources: agl.NamedResources,
    rollout: agl.AttemptedRollout,
    models: Mapping[str, ModelConfig],
    gateway_url: str,
    key: str,
) -> dict[str, Endpoint]:
    """Where `rollout` finds each model: the gateway under an address that attributes its calls to this attempt.

    Raises:
        RunError: The resources name another place than the gateway, which must not get the key and the prompts.
    """
    found: dict[str, Endpoint] = {}
    for name, resource in resources.items():
        if not isinstance(resource, agl.ProxyLLM):
            continue
        sampling = resource.sampling_parameters
        url = resource.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        if not url.startswith(f"{gateway_url}/"):
            raise RunError(f"model {name!r} is said to be at {url}, which is not this run's gateway ({gateway_url})")
        found[name] = Endpoint(
            base_url=url,
            model=resource.model,
            api_key=key,
            structured=models[name].sends_schema,
            temperature=sampling["temperature"],
            top_p=sampling["top_p"],
            max_tokens=sampling["max_tokens"],
            timeout_s=models[name].timeout_s,
            **models[name].request_fields,
        )
    return found


def selection(resources: agl.NamedResources) -> SelectionSpec:
    """Who chooses among hypotheses."""
    choice = resources[SELECTION]
    assert isinstance(choice, agl.PromptTemplate)
    return SelectionSpec.load(json.loads(choice.template))
