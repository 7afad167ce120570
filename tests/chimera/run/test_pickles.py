"""No file that somebody gave you runs code: pickles are planted wherever one could be read, and nothing happens."""

import io
import json
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from message_kit import refused

from agents.policies.bandit import load_policy
from chimera.core.errors import ChimeraError
from chimera.serving.embedded.checkpoint import load_checkpoint
from training.ppo.engine.state import read_state, write_state
from training.ppo.engine.update import PpoEngine
from training.ppo.verl.settings import PpoSettings
from training.tune.child import Spec, load_model


class Planted:
    """Makes a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (Path.touch, (self.file,))


@pytest.fixture
def trap(tmp_path):
    """Writes bytes that make `trap.file` when they are unpickled, plain or as torch.save does; and they would work."""

    class Trap:
        file = tmp_path / "code-was-run"

        def plant(self, path, *, zipped=False):
            path.parent.mkdir(parents=True, exist_ok=True)
            if zipped:
                torch.save({"weight": Planted(self.file)}, path)
            else:
                path.write_bytes(pickle.dumps(Planted(self.file)))
            return path

        def works(self, path):
            data = path.read_bytes()
            torch.load(io.BytesIO(data), weights_only=False) if zipfile.is_zipfile(path) else pickle.loads(data)
            assert self.file.exists()
            self.file.unlink()

    return Trap()


def never_read(read, trap, name):
    """`read` fails in one sentence that names the file, and nothing was run."""
    with refused(ChimeraError, name):
        read()
    assert not trap.file.exists()


@pytest.fixture(scope="module")
def checkpoint(serving_model, tmp_path_factory):
    """The engine's folder of a checkpoint; the engine is closed again."""
    folder = tmp_path_factory.mktemp("checkpoint") / "engine"
    with_engine(serving_model(), lambda engine: engine.save(folder))
    return folder


def with_engine(model, use):
    engine = PpoEngine(model, PpoSettings(), seed=0, total_steps=1)
    try:
        return use(engine)
    finally:
        engine.close()


def test_a_checkpoint_holds_no_pickle_and_each_of_its_files_may_be_one(checkpoint, serving_model, tmp_path, trap):
    names = sorted(file.relative_to(checkpoint).as_posix() for file in checkpoint.rglob("*") if file.is_file())
    assert names == ["actor.json", "actor.safetensors", "engine.json", "random.json", "random.safetensors"]

    def try_all(engine):
        engine.load(checkpoint)
        for number, name in enumerate(names):
            copy = shutil.copytree(checkpoint, tmp_path / str(number))
            planted = trap.plant(copy / name, zipped=number % 2 == 1)
            trap.works(planted)
            never_read(lambda copy=copy: engine.load(copy), trap, str(copy) if name == "engine.json" else str(planted))

    with_engine(serving_model(), try_all)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.lists(st.integers(0, 2**32 - 1), max_size=4).map(lambda numbers: torch.tensor(numbers, dtype=torch.int64)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(values)
def test_a_state_comes_back_as_it_was(tmp_path_factory, state):
    folder = tmp_path_factory.mktemp("state")
    write_state(state, folder, "a")
    assert same(state, read_state(folder, "a"))


def test_tied_weights_and_random_states_come_back(tmp_path):
    import numpy as np

    tied = torch.arange(4.0)
    write_state(
        {"a": tied, "b": tied.view(2, 2), "r": np.random.default_rng(0).bit_generator.random_raw(3)}, tmp_path, "a"
    )
    found = read_state(tmp_path, "a")
    assert torch.equal(found["a"], found["b"].flatten())
    assert found["r"].dtype == np.uint64
    with pytest.raises(TypeError, match="cannot hold a BytesIO"):
        write_state([io.BytesIO()], tmp_path, "b")


@pytest.fixture
def pickled_model(serving_model, tmp_path, trap):
    """A whole model folder whose weights are a pickle."""
    folder = shutil.copytree(serving_model(), tmp_path / "pickled-model")
    (folder / "model.safetensors").unlink()
    trap.works(trap.plant(folder / "pytorch_model.bin", zipped=True))
    return folder


def spec_of(folder):
    return Spec("", str(folder), "", 0, 1, 8, 8, 1e-3, 0.0, 64, 0, 32, "never")


READERS = {
    "server": lambda folder: load_checkpoint(str(folder)),
    "sft": lambda folder: load_model(spec_of(folder)),
    "ppo": lambda folder: with_engine(folder, lambda engine: None),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_models_pickled_weights_are_named_and_never_read_and_no_index_leads_there(
    pickled_model, serving_model, trap, reader
):
    never_read(lambda: READERS[reader](pickled_model), trap, "pytorch_model.bin is a pickle")
    shutil.copy(serving_model() / "model.safetensors", pickled_model / "other.safetensors")
    if reader == "server":
        load_checkpoint(str(pickled_model))  # It reads what is safetensors, and nothing else.
        assert not trap.file.exists()
        return
    never_read(lambda: READERS[reader](pickled_model), trap, "pytorch_model.bin is a pickle")
    (pickled_model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    never_read(lambda: READERS[reader](pickled_model), trap, "names 'pytorch_model.bin', which is no safetensors file")


@pytest.mark.parametrize("reader", READERS)
def test_an_adapter_cannot_bring_other_weights_in(serving_model, tmp_path, trap, reader):
    folder = shutil.copytree(serving_model(), tmp_path / "adapted")
    trap.plant(folder / "adapter_model.bin", zipped=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder)}))
    never_read(lambda: READERS[reader](folder), trap, "adapter_config.json")


def test_a_models_own_code_is_not_run(serving_model, tmp_path):
    """auto_map names code in the folder, which transformers would run if it were told to trust it."""
    folder = shutil.copytree(serving_model(), tmp_path / "coded")
    made = tmp_path / "code-was-run"
    code = f"import pathlib\npathlib.Path({str(made)!r}).touch()\n"
    (folder / "theirs.py").write_text(code)
    for name, key in (("config.json", "AutoModelForCausalLM"), ("tokenizer_config.json", "AutoTokenizer")):
        settings = json.loads((folder / name).read_text())
        value = ["theirs.T", "theirs.T"] if key == "AutoTokenizer" else "theirs.M"
        (folder / name).write_text(json.dumps(settings | {"auto_map": {key: value, "AutoConfig": "theirs.C"}}))
    READERS["sft"](folder)
    READERS["ppo"](folder)
    assert not made.exists()
    with refused(ChimeraError, "ppo.verl.model.trust_remote_code", "override_config"):
        PpoEngine(folder, PpoSettings(verl={"model": {"trust_remote_code": True}}), seed=0, total_steps=1)


@pytest.mark.parametrize("name", ["policy.json", "arrays.safetensors"])
def test_a_bandits_files_may_be_pickles(tmp_path, trap, name):
    from agents.policies.bandit import BanditPolicy, Settings
    from training.algorithms.bandit import BanditSettings

    BanditPolicy(Settings.of(BanditSettings(), 0)).save(tmp_path / "policy")
    load_policy(tmp_path / "policy")
    trap.works(trap.plant(tmp_path / "policy" / name))
    never_read(lambda: load_policy(tmp_path / "policy"), trap, str(tmp_path / "policy"))
