"""Weights of torchvision's networks: their outputs, their names and shapes, and files.

`NETWORKS` has what torchvision itself computes, as `experiments/torchvision_models.py --golden`
prints it.
"""

import json
import sys
import types
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_kinds import in_all, nightly
from safetensors.numpy import save_file
from weight_helpers import numbers, tensor, torch_shapes

from fedjax_algos.models import classifier, convert_weights, freeze, load_config, models, pretrained
from fedjax_algos.models.large import inverted_residual, residual
from fedjax_algos.models.large.inverted_residual import EFFICIENTNET_B0, MOBILENET_V2
from fedjax_algos.models.large.weights import load_weights
from fedjax_algos.models.small import Perceptron

# names, checksum of names and shapes, outputs for ten classes and an image of 32x32
NETWORKS = {
    "mobilenet_v2": (
        inverted_residual.torch_names(MOBILENET_V2, squeeze=False), 2752911555,
        [-3.313, -.57502, -2.2715, -4.158, 5.4225, -3.66, -2.4304, -3.17, .51693, 2.0226],
    ),
    "efficientnet_b0": (
        inverted_residual.torch_names(EFFICIENTNET_B0, squeeze=True), 1883252148,
        [.17223, -.17382, -.21662, .32231, -.5969, -1.3577, .53981, .34948, .77053, .12293],
    ),
    "resnet18_imagenet": (
        residual.torch_names([2, 2, 2, 2], 2), 485856311,
        [4.6017, 3.6543, -8.3587, -5.6697, 6.1579, 22.898, -7.3945, 9.3225, 10.581, 4.3152],
    ),
    "resnet50": (
        residual.torch_names([3, 4, 6, 3], 3), 737386902,
        [-1577.2, 7906.5, 2497.6, 2593.9, 3518.2, 4996.3, -2042.6, 5042.8, 415.59, -449.95],
    ),
}  # fmt: skip
IN_ALL = "efficientnet_b0", "resnet18_imagenet", "resnet50"


@pytest.mark.parametrize("name", [*in_all(*IN_ALL), *nightly("mobilenet_v2")])
def test_names_shapes_and_outputs_are_those_of_torchvision(name):
    (names, *_), checksum, expected = NETWORKS[name]
    shapes = torch_shapes(models[name]((32, 32, 3), 10), names, {})
    listed = json.dumps(sorted((key, list(shape)) for key, shape in shapes.items()))
    assert zlib.crc32(listed.encode()) == checksum
    weights = {key: tensor(key, shape) for key, shape in shapes.items() if shape}
    problem = models[name]((32, 32, 3), 10, weights=weights)
    x = (2 * numbers("images", (1, 32, 32, 3)) - 1).astype(np.float32)

    def logits(x):
        key = jax.random.key(0)
        return problem.apply(problem.init(key), {"x": x}, key, False)[0].logits

    compiled = jax.jit(logits).lower(x).compile({"xla_backend_optimization_level": 0})
    tolerance = 1e-4 * np.abs(expected).max()
    np.testing.assert_allclose(compiled(x)[0], expected, rtol=0, atol=tolerance)


NAMES = {"Dense_0": "fc1", "Dense_1": "fc2"}
SMALL = {"fc1.weight": (3, 4), "fc1.bias": (3,), "fc2.weight": (2, 3), "fc2.bias": (2,)}


@pytest.fixture
def small():
    """A perceptron of 4, 3 and 2 units, and weights for it."""
    problem = classifier(Perceptron((3, 2)), (4,))
    return problem, {name: tensor(name, shape) for name, shape in SMALL.items()}


def shapes(problem):
    return jax.eval_shape(problem.init, jax.random.key(0))


def test_kernels_are_transposed_and_single_leaves_have_names_of_their_own(small):
    problem, weights = small
    joint = {"both": np.concatenate([weights["fc1.weight"], weights["fc2.weight"].T], axis=1)}
    joint |= {"fc1.bias": weights["fc1.bias"], "last": weights["fc2.bias"]}
    names = {
        "Dense_0/kernel": ("both", lambda tensor: tensor[:, :4].T),
        "Dense_1/kernel": ("both", lambda tensor: tensor[:, 4:]),
        "Dense_0": "fc1",
        "Dense_1/bias": "last",
    }
    x = np.arange(4.0, dtype=np.float32)
    hidden = np.maximum(weights["fc1.weight"] @ x + weights["fc1.bias"], 0)
    expected = weights["fc2.weight"] @ hidden + weights["fc2.bias"]
    for given, of in ((weights, NAMES), (joint, names)):
        model = convert_weights(given, of, shapes(problem))
        outputs, _ = problem.apply(model, {"x": x[None]}, jax.random.key(0), False)
        np.testing.assert_allclose(outputs.logits[0], expected, rtol=1e-5)
    # narrow floats become wider
    narrow = {name: value.astype(jnp.bfloat16) for name, value in weights.items()}
    kernel = convert_weights(narrow, NAMES, shapes(problem)).params["Dense_0"]["kernel"]
    assert kernel.dtype == np.float32
    np.testing.assert_array_equal(kernel, narrow["fc1.weight"].T.astype(np.float32))


def test_weights_that_do_not_fit_are_named(small):
    problem, weights = small
    for change, message in (
        ({"fc2.bias": None}, "no 'fc2.bias', which Dense_1/bias needs; they have fc1.bias, fc1.w"),
        ({"fc3.bias": np.ones(2)}, r"have 'fc3.bias' \(1 in all\)"),
        ({"fc1.running_mean": np.ones(3)}, "running_mean.*running means belong to BatchNorm"),
        (
            {"fc1.weight": np.ones((4, 3))},
            r"\[3, 4\], but Dense_0/kernel is float32\[4, 3\]; give",
        ),
        (
            {"fc1.bias": np.ones(3)},
            "'fc1.bias' becomes float64.*, but .*float32.* convert",
        ),
        ({"fc1.bias": np.float32([0, 1, np.nan])}, "'fc1.bias' has infinities or NaN"),
    ):
        changed = {name: value for name, value in (weights | change).items() if value is not None}
        with pytest.raises(ValueError, match=message):
            convert_weights(changed, NAMES, shapes(problem))


def test_modules_that_the_weights_do_not_have_stay_as_they_were_drawn(small):
    """Names with None, below a module with a name and alone; tensors still need their places."""
    problem, weights = small
    own = {name: tensor for name, tensor in weights.items() if name.startswith("fc1.")}
    model = problem.init(jax.random.key(0))
    names = {"Dense_0": "fc1", "Dense_0/bias": None, "Dense_1": None}
    kernel = {"fc1.weight": own["fc1.weight"]}
    loaded = pretrained(problem, kernel, [names]).init(jax.random.key(0)).params
    np.testing.assert_array_equal(loaded["Dense_0"]["kernel"], own["fc1.weight"].T)
    np.testing.assert_array_equal(loaded["Dense_0"]["bias"], model.params["Dense_0"]["bias"])
    jax.tree.map(np.testing.assert_array_equal, loaded["Dense_1"], model.params["Dense_1"])
    with pytest.raises(ValueError, match=r"have 'fc1.bias' \(1 in all\), which the model"):
        pretrained(problem, own, [names])
    with pytest.raises(ValueError, match="names have none for Dense_1/bias; add its path"):
        convert_weights(weights, {"Dense_0": "fc1"}, shapes(problem))


def test_a_model_starts_from_the_weights(small):
    """Also in mapped initialisations and frozen; the program does not contain them."""
    problem, weights = small
    loaded = pretrained(problem, weights, [NAMES])
    program = jax.jit(loaded.init).lower(jax.random.key(0)).as_text()
    assert "callback" in program
    assert "0x" not in program  # of dense constants
    mapped = jax.jit(jax.vmap(loaded.init))(jax.random.split(jax.random.key(0), 2))
    np.testing.assert_array_equal(mapped.params["Dense_0"]["kernel"][1], weights["fc1.weight"].T)
    frozen = freeze(loaded, "Dense_1/*").init(jax.random.key(0))
    np.testing.assert_array_equal(frozen.frozen["Dense_0/kernel"], weights["fc1.weight"].T)


def test_files_of_all_types_are_read(tmp_path):
    kinds = np.float32, np.float16, np.float64, np.int64, np.uint8, jnp.bfloat16
    drawn = np.random.default_rng(0).normal(size=(len(kinds), 2, 3))
    arrays = {np.dtype(k).name: x.astype(k) for k, x in zip(kinds, drawn, strict=True)}
    save_file(arrays, tmp_path / "weights.safetensors")
    read = load_weights(tmp_path / "weights.safetensors")
    assert set(read) == set(arrays)
    for name, value in arrays.items():
        assert read[name].dtype == value.dtype
        np.testing.assert_array_equal(read[name], value)


def test_a_folder_with_several_files(tmp_path):
    """As Hugging Face has it: the index has the file of each tensor; without it there is one."""
    places = {"a": "model-1.safetensors", "b": "model.safetensors"}
    for name, file in places.items():
        save_file({name: np.arange(3.0)}, tmp_path / file)
    assert [*load_weights(tmp_path)] == ["b"]
    index, config = tmp_path / "model.safetensors.index.json", tmp_path / "config.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert {name: array.tolist() for name, array in load_weights(tmp_path).items()} == {
        "a": [0, 1, 2],
        "b": [0, 1, 2],
    }
    for content, message in (
        ({"weight_map": places | {"c": "model-3.safetensors"}}, "of its index: 'model-3.safet"),
        ({"weight_map": places | {"c": "model.safetensors"}}, "of its index: 'c'; fetch it"),
        ([places], "not a folder with all files"),
        ({}, "'weight_map'"),
    ):
        index.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=message):
            load_weights(tmp_path)
    config.write_text('{"hidden_size": 8}')
    assert load_config(tmp_path) == {"hidden_size": 8}
    config.write_text("[8]")
    with pytest.raises(ValueError, match=r"config\.json: not an object of JSON"):
        load_config(tmp_path)
    for read in (load_weights, load_config):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(ValueError, match=r"(model.safetensors|config.json): there is no such"):
            read(tmp_path / "empty")


def test_wrong_files_and_missing_packages_are_named(tmp_path, monkeypatch):
    path = tmp_path / "weights.safetensors"
    for content in (b"", b"\xff" * 100, b"\x08" + bytes(7) + b'{"a":1}x'):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"weights\.safetensors: not "):
            load_weights(path)
    header = b'{"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"x")
    with pytest.raises(ValueError, match=r"weights\.safetensors: not .*F8_E4M3.*types of NumPy"):
        load_weights(path)
    for name in ("safetensors", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    messages = {"safetensors": "install safetensors", "pt": "install torch", "onnx": r"'\.onnx'"}
    for suffix, message in messages.items():
        with pytest.raises(ValueError, match=message):
            load_weights(f"weights.{suffix}")


class Tensor(np.ndarray):
    """What is read of torch's tensors."""

    def detach(self):
        return self

    def numpy(self):
        return np.asarray(self)


def test_torch_files_are_read_without_running_them(tmp_path, monkeypatch):
    """With a stand-in for torch; `experiments/torchvision_models.py` reads a real file."""
    held, seen = {"w": np.arange(2.0).view(Tensor)}, []

    def load(path, **options):
        seen.append(options)
        if held is None:
            raise KeyError("it is damaged")
        return held

    torch = types.SimpleNamespace(load=load, Tensor=Tensor, bfloat16="bfloat16")
    monkeypatch.setitem(sys.modules, "torch", torch)
    path = tmp_path / "weights.pth"
    path.touch()
    np.testing.assert_array_equal(load_weights(path)["w"], [0, 1])
    for content, message in (
        ([1], "'list' object"),
        ({"model": {}}, "'model' is a dict, not a tensor"),
        (None, "it is damaged"),
    ):
        held = content
        with pytest.raises(ValueError, match=f"weights.pth: not .*{message}.*; save the state"):
            load_weights(path)
    assert seen == [{"map_location": "cpu", "weights_only": True}] * 4
