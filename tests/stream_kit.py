"""Streamed chat completions, and unstreamed ones in the same form."""

import json

TOOL = {
    "type": "function",
    "function": {
        "name": "literature_search",
        "description": "Search.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "maxLength": 8}},
            "required": ["query"],
            "additionalProperties": False,
        },
    },
}


def events(response):
    """The chunks of a whole stream, after its form has been checked."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *lines, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def added_up(chunks):
    """Each choice as its chunks add up to it, without the ids of calls."""
    choices = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = choices.setdefault(part["index"], {"content": None, "calls": [], "finish": None, "token_ids": []})
            delta = part["delta"]
            if delta.get("content") is not None:
                choice["content"] = (choice["content"] or "") + delta["content"]
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(choice["calls"]):
                    assert call["id"]
                    choice["calls"].append([call["function"]["name"], ""])
                choice["calls"][call["index"]][1] += call["function"]["arguments"]
            choice["finish"] = part["finish_reason"] or choice["finish"]
            choice["token_ids"] += part.get("token_ids", [])
            for entry in (part["logprobs"] or {}).get("content", ()):
                choice.setdefault("logprobs", []).append(entry)
            choice.setdefault("sampled", []).extend(part.get("sampled_logprobs", ()))
    return [choices[index] for index in sorted(choices)]


def as_added_up(answer):
    """The choices of an unstreamed answer in the form of `added_up`."""
    choices = []
    for choice in answer["choices"]:
        message = choice["message"]
        calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", ())]
        whole = {"content": message["content"], "calls": calls, "finish": choice["finish_reason"]}
        whole |= {"token_ids": choice.get("token_ids", []), "sampled": choice.get("sampled_logprobs", [])}
        choices.append(whole | ({"logprobs": choice["logprobs"]["content"]} if choice["logprobs"] else {}))
    return choices
