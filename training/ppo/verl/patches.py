"""What VeRL 0.9.1 lacks or does otherwise than is needed here: a CPU, one process, updates by ranks.

`mend` applies what every engine needs, `sum_metrics` and `take_planned_micro_batches` what ranks need.
"""

import logging
import types
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

import psutil
import torch
from torch import Tensor
from verl.plugin.platform import PlatformBase

from training.model import chunked_head, varlen_attention
from training.model.chunked_head import ChunkedHead, HeadRequest
from training.model.prefix_tree import grow
from training.ppo.verl.runtime import Device

if TYPE_CHECKING:
    from tensordict import TensorDict

TREE = "prefix_tree"
OTHERS = ("use_fused_kernels", "calculate_sum_pi_squared", "distillation_use_topk", "distillation_only")
"""Options of VeRL that need the logits of all tokens."""
MICRO_BATCHES = "micro_batch_sizes"
"""Of a batch: the numbers of rows of its micro-batches, for `take_planned_micro_batches`."""
_LOG = logging.getLogger(__name__)
_AnyBase: Any = object
"""VeRL's engine, which cannot be imported before its platform is set."""


def mend(device: Device) -> None:
    """Replace what VeRL 0.9.1 hard-codes for its own clusters, once its engines are imported."""
    import verl.models.transformers.monkey_patch as monkey_patch
    import verl.utils.model as models
    import verl.workers.engine.fsdp.transformer_impl as fsdp
    from verl.utils import torch_functional
    from verl.utils.profiler import performance
    from verl.workers import engine_workers
    from verl.workers.engine.base import EngineRegistry

    for module in (monkey_patch, models, fsdp, performance):
        module.__dict__["print"] = _to_log
    # It would bind the whole process, including its server threads, to the cores near a GPU.
    engine_workers.__dict__["set_numa_affinity"] = lambda: None
    # The original requires flash attention, whatever the configuration says.
    models.__dict__["load_valuehead_model"] = _load_value_model
    if not torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE:
        # Without flash attention's kernel the original computes one logsumexp per token in a Python loop.
        fsdp.__dict__["logprobs_from_logits"] = _log_probs
    # torch warns of VeRL's jagged tensors, but VeRL changes no model output in place.
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    if device == "cpu":
        actor = type("TreeEngine", (TreeEngine, fsdp.FSDPEngineWithLMHead), {})
        for kind, engine in (("language_model", actor), ("value_model", fsdp.FSDPEngineWithValueHead)):
            EngineRegistry.register(model_type=kind, backend="fsdp2", device="cpu")(engine)


def _to_log(*parts: Any, **_: Any) -> None:
    text = " ".join(map(str, parts))
    _LOG.log(logging.WARNING if text.startswith("WARN") else logging.DEBUG, "%s", text)


def _load_value_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    """A language model without its head, and with a new head that gives one number per token."""
    from transformers import AutoModelForTokenClassification
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # transformers would report the new head as missing from the checkpoint.
    try:
        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation=model_config._attn_implementation,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
        )
    finally:
        transformers_logging.set_verbosity(shown)


def _log_probs(logits: Any, labels: Any, inplace_backward: bool = True) -> Any:
    from torch.nn.functional import cross_entropy

    flat = cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1), reduction="none")
    return -flat.view(labels.shape)


def _resident(*_: Any) -> int:
    """Memory of this process in bytes, in place of allocated device memory."""
    return psutil.Process().memory_info().rss


def _memory(*_: Any) -> tuple[int, int]:
    """Free and total memory in bytes."""
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _cpu_module() -> ModuleType:
    """A copy of `torch.cpu` with the functions of `torch.cuda` that VeRL calls."""
    module = types.ModuleType("cpu", "torch.cpu as VeRL expects a device module.")
    vars(module).update({name: value for name, value in vars(torch.cpu).items() if not name.startswith("__")})
    vars(module).update(dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), _resident))
    vars(module).update(dict.fromkeys(("memory_allocated", "memory_reserved"), _resident))
    vars(module).update(
        mem_get_info=_memory,
        get_device_name=lambda *_: "CPU",
        empty_cache=lambda: None,
        get_rng_state=lambda *_: torch.get_rng_state(),
        set_rng_state=lambda state, *_: torch.set_rng_state(state),
    )
    return module


class CpuPlatform(PlatformBase):
    """The host's processor, one device, with gloo between ranks: VeRL 0.9.1 knows accelerators only.

    A platform gives the device's name and a module like `torch.cuda`. The rest of VeRL's FSDP engine is PyTorch.
    """

    _module = _cpu_module()

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return self._module

    def is_available(self) -> bool:
        return True

    # VeRL moves tensors to the current device. The number 0 would mean the first GPU.
    def current_device(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None:
        """Do nothing: CPU operations are synchronous."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Do nothing: the C allocator has no such settings."""

    def empty_cache(self) -> None:
        """Do nothing: torch keeps no cache of CPU memory."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """No variable selects CPUs; this name is never set."""
        return "CPU_VISIBLE_DEVICES"

    # VeRL's own annotation is None, though every platform returns a context manager.
    def nvtx_range(self, msg: str) -> AbstractContextManager[None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Do nothing: NVIDIA's profiler does not apply."""
        return nullcontext()

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        """Tensors are not shared between processes."""
        return False

    def cudart(self) -> None: ...


class TreeEngine(_AnyBase):
    """What stands in front of VeRL 0.9.1's engine of a language model, on the CPU.

    Shared beginnings of sequences are computed once, and logits never all at a time, see `training.model`. Log-
    probabilities and entropies are computed for response tokens only; for the others they are 0, and VeRL's losses
    leave them out. A micro-batch without shared beginnings and with few logits, or with another attention, is computed
    as by VeRL.
    """

    _head: ChunkedHead | None = None

    def prepare_model_inputs(self, micro_batch: "TensorDict") -> tuple[dict[str, Any], dict[str, Any]]:
        """The model's inputs, of which the tokens are those of the tree."""
        inputs, outputs = super().prepare_model_inputs(micro_batch)
        if not self._fits(micro_batch):
            return inputs, outputs
        ids = micro_batch["input_ids"]
        tree = grow(ids.values(), ids.offsets().diff().tolist())
        large = len(tree.kept) * self.module.config.vocab_size > chunked_head.LOGITS
        if len(tree.kept) == len(tree.place) and not large:
            return inputs, outputs
        places = _before_responses(micro_batch)
        # Of a token that ends several prompts' beginnings logits are computed once; scores have one label each.
        needed, which = (tree.place[places], None) if large else tree.place[places].unique(return_inverse=True)
        if large:
            self._ask(places, outputs, micro_batch)
        inputs |= {
            "input_ids": inputs["input_ids"][:, tree.kept],
            "position_ids": inputs["position_ids"][:, tree.kept],
            "logits_to_keep": needed,
            TREE: tree,
        }
        return inputs, outputs | {TREE: (places, which)}

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: "TensorDict", logits_processor_func: Any
    ) -> dict[str, Tensor]:
        """`log_probs`, and `entropy` if asked for: jagged, (calls, tokens)."""
        if TREE not in output_args:
            return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        places, which = output_args[TREE]
        logits = output.logits.squeeze(0).float()
        if which is None:
            columns = ("log_probs", "entropy")[: 1 + _wants_entropy(micro_batch)]
            scores = dict(zip(columns, logits.unbind(-1), strict=False))
        else:
            scores = self._scores(logits, which, places, output_args, micro_batch)
        ids = micro_batch["input_ids"]
        empty = torch.zeros(len(ids.values()), device=logits.device)
        return {
            name: torch.nested.nested_tensor_from_jagged(empty.index_put((places,), values), ids.offsets())
            for name, values in scores.items()
        }

    def _scores(
        self, logits: Tensor, which: Tensor, places: Tensor, output_args: dict[str, Any], micro_batch: "TensorDict"
    ) -> dict[str, Tensor]:
        """Log-probabilities and, if asked for, entropies of response tokens, from the logits of shared places."""
        if not output_args["temperature_is_one"]:
            logits = logits / _temperature(output_args)
        total = logits.logsumexp(dim=-1)
        labels = output_args["input_ids_rmpad_rolled"][places]
        scores = {"log_probs": logits[which, labels] - total[which]}
        if _wants_entropy(micro_batch):
            scores["entropy"] = (total - (logits.softmax(dim=-1) * logits).sum(dim=-1))[which]
        return scores

    def _ask(self, places: Tensor, output_args: dict[str, Any], micro_batch: "TensorDict") -> None:
        """Make the next forward pass score the labels of these places, a chunk at a time."""
        if self._head is None:
            self._head = ChunkedHead(self.module.get_output_embeddings(), self.module.config.vocab_size)
        temperature = 1.0 if output_args["temperature_is_one"] else float(_temperature(output_args))
        labels = output_args["input_ids_rmpad_rolled"][places]
        self._head.ask(HeadRequest(labels, temperature, _wants_entropy(micro_batch)))

    def _fits(self, micro_batch: "TensorDict") -> bool:
        packed = _option(micro_batch, "use_remove_padding", True)
        others = any(_option(micro_batch, name) for name in OTHERS)
        attention = self.module.config._attn_implementation
        return (
            packed
            and not others
            and not self.use_ulysses_sp
            and not self.pad_to_length
            and attention == varlen_attention.NAME
        )


def _temperature(output_args: dict[str, Any]) -> Tensor:
    """That of all calls of an update."""
    return output_args["temperature_rmpad"][0].clamp(min=1e-8)


def _wants_entropy(micro_batch: "TensorDict") -> bool:
    return bool(_option(micro_batch, "calculate_entropy"))


def _before_responses(micro_batch: "TensorDict") -> Tensor:
    """Places in the pack whose next token is one of a response."""
    offsets = micro_batch["input_ids"].offsets().tolist()
    lengths = micro_batch["responses"].offsets().diff().tolist()
    return torch.cat(
        [torch.arange(end - length - 1, end - 1) for end, length in zip(offsets[1:], lengths, strict=True)]
    )


def _option(micro_batch: "TensorDict", name: str, otherwise: Any = False) -> Any:
    from verl.utils import tensordict_utils as tu

    return tu.get_non_tensor_data(data=micro_batch, key=name, default=otherwise)


def sum_metrics(loss: Callable[..., Any]) -> Callable[..., Any]:
    """`loss`, whose mean metrics become sums: each micro-batch's value by its share of the mini-batch's tokens.

    VeRL 0.9.1 takes the mean over micro-batches, which would depend on how rows are divided among ranks.
    """
    from verl.utils.metric import AggregationType, Metric

    def compute(model_output: Any, data: Any, dp_group: Any = None) -> tuple[Any, dict[str, Any]]:
        share = float(data["response_mask"].values().sum()) * data["dp_size"] / data["batch_num_tokens"]
        value, metrics = loss(model_output=model_output, data=data, dp_group=dp_group)
        sums = {}
        for name, metric in metrics.items():
            plain = not isinstance(metric, Metric)
            if plain or metric.aggregation == AggregationType.MEAN:
                metric = Metric(AggregationType.SUM, share * (metric if plain else metric.aggregate()))
            sums[name] = metric
        return value, sums

    return compute


def take_planned_micro_batches() -> None:
    """Make VeRL 0.9.1's engines take the micro-batches of `training.ppo.ranks` instead of their own."""
    import verl.workers.engine.fsdp.transformer_impl as fsdp
    from verl.utils import tensordict_utils as tu

    def planned(data: "TensorDict", **_: Any) -> "tuple[list[TensorDict], list[list[int]]]":
        places, first = [], 0
        for size in tu.get_non_tensor_data(data, MICRO_BATCHES, default=[]):
            places.append(list(range(first, first + size)))
            first += size
        return [tu.index_select_tensor_dict(data, rows) for rows in places], places

    fsdp.__dict__["prepare_micro_batches"] = planned
