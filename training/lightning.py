"""Agent Lightning without LiteLLM, which it would load for its class `LLMProxy`.

Of the eight processor seconds that `import agentlightning` (0.3.0) takes, LiteLLM's proxy takes seven, and no run uses
it: the society calls the model servers itself.
"""

import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any, cast

PROXY = "agentlightning.llm_proxy"
INSTRUMENTATION = "agentlightning.instrumentation.litellm"


class LLMProxy:
    """Stands for Agent Lightning's class of this name. Whoever makes an instance gets one of the real class."""

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """An instance of the real class."""
        return load_proxy().LLMProxy(*args, **options)


class _Later(ModuleType):
    """Stands for the module of `LLMProxy`. Asking for any name but that class loads the module."""

    def __init__(self) -> None:
        super().__init__(PROXY)
        self.__all__ = ["LLMProxy"]
        self.LLMProxy = LLMProxy

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's import asks for these.
            raise AttributeError(name)
        return getattr(load_proxy(), name)


def postpone_proxy() -> None:
    """Make a later `import agentlightning` leave LiteLLM out. One that has been done stays as it is."""
    if "agentlightning" in sys.modules:
        return
    # Agent Lightning's own runner imports the module that this is about.
    warnings.filterwarnings("ignore", "agentlightning.reward is deprecated", UserWarning)
    sys.modules[PROXY] = _Later()
    sys.modules[INSTRUMENTATION] = cast(ModuleType, None)  # Python's sign for a module that cannot be imported.


def load_proxy() -> ModuleType:
    """The real module of `LLMProxy`, which loads LiteLLM; Agent Lightning has the real class from then on."""
    if isinstance(sys.modules.get(PROXY), _Later):
        del sys.modules[PROXY], sys.modules[INSTRUMENTATION]
    module = import_module(PROXY)
    for name in ("agentlightning", "agentlightning.trainer.trainer"):
        vars(import_module(name))["LLMProxy"] = module.LLMProxy
    return module
