"""A question with an abstract, and a server on loopback that plays the society's standard answers to it."""

import threading
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO

from chimera.ask import main
from chimera.config.roles import JUNIORS
from evaluation.scores.judge import CRITERIA

QUESTION = "Does nightly zorbex lower the relapse rate?"
ABSTRACT = """BACKGROUND: Relapse is common.
RESULTS: The relapse rate was lower with zorbex (12% versus 25%, p=0.004). Harms did not differ.
"""
QUOTE = "The relapse rate was lower with zorbex (12% versus 25%, p=0.004)."


def ask(*arguments):
    return main([str(argument) for argument in arguments])


def printed_by(module, *arguments):
    """What a command prints, which runs in this process and ends well; its modules need no second import."""
    with redirect_stdout(StringIO()) as printed:
        assert not import_module(module).main([str(argument) for argument in arguments]), printed.getvalue()[-2000:]
    return printed.getvalue()


def quoting(answers):
    """These answers, with hypotheses that quote the abstract."""
    return {**answers, **{name: {**answers[name], "evidence": [QUOTE]} for name in (*JUNIORS, "HypothesisRefiner")}}


def endpoints(url):
    slots = ("junior", "board", "principal", "judge")
    settings = {"kind": "endpoint", "base_url": url, "model": "big-model"}
    return [*(f"models.{slot}.{key}={value}" for slot in slots for key, value in settings.items()), "data.size=20"]


class AskedServer:
    """Plays `answers` on the scripted server. Juniors search once, if `searches`; `broken_role` says nothing useful.

    `hangs` keeps every answer back. `reached` is set by the first request, and `requests` holds all of them.
    """

    def __init__(self, scripted, answers):
        self.scripted, self.answers, self.requests = scripted, answers, scripted.requests
        self.searches, self.hangs, self.broken_role = True, False, None
        self.reached = threading.Event()
        self.overrides = endpoints(scripted.url)
        scripted.hooks[:] = [self.play]
        scripted.requests.clear()

    def play(self, request):
        self.reached.set()
        role = self.scripted.role(request)
        if self.hangs:
            return self.scripted.never()
        if role == self.broken_role:
            return "no idea"
        if self.searches and role in JUNIORS and request.get("tools") and request["messages"][-1]["role"] == "user":
            return None  # The scripted server's own search.
        return self.answers.get(role) or dict.fromkeys(CRITERIA, 0.75)
