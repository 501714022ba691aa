"""Models in files: every bit comes back, damage is refused by name, and so are other models."""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from same_runs import assert_same_bits

import fedjax_algos as fa

PARAMS = {
    "layer": {"kernel": jnp.array([[1.5, -0.0], [np.nan, 1e-40]], jnp.float32)},
    "half": jnp.array([1.1, -3e38, np.inf], jnp.bfloat16),
    "list": [np.float64(0.1), np.arange(3, dtype=np.int8), np.array(True)],
    "eight": np.array([0.5, 448], ml_dtypes.float8_e4m3fn),
    "complex": np.array([1 + 2j], np.complex64),
    "bits": jnp.array([1, 7, -8], jnp.int4),
    "empty": np.zeros((0, 3), np.float32),
}
MODEL = fa.Model(PARAMS, {"mean": jnp.ones(2)}, {"base": jnp.full((2, 2), 2, jnp.bfloat16)})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.npz"


@pytest.mark.parametrize("model", [PARAMS, MODEL, jnp.arange(4.0), fa.Model(PARAMS)])
def test_every_bit_comes_back(model, path):
    fa.save_model(path, model)
    loaded = fa.load_model(path, jax.tree.map(np.zeros_like, model))
    assert type(loaded) is type(jax.tree.map(np.zeros_like, model))
    assert_same_bits(loaded, model)
    placed = jax.tree.leaves(fa.load_model(path, model))  # on the devices of the given one
    for one, like in zip(placed, jax.tree.leaves(model), strict=True):
        assert getattr(one, "sharding", None) == getattr(like, "sharding", None)


def test_numpy_alone_reads_the_file(path):
    fa.save_model(path, MODEL)
    with np.load(path) as file:
        assert_array_equal(file["params/layer/kernel"], PARAMS["layer"]["kernel"])
        stored = file["params/half"]
    assert stored.dtype.names == ("bfloat16",)
    assert_array_equal(stored["bfloat16"], np.asarray(PARAMS["half"]).view(np.uint16))


def test_every_damaged_byte_is_refused_by_name_or_harmless(path):
    """The date of a member, for example, says nothing about the arrays."""
    params = {"a": jnp.arange(3, dtype=jnp.float32), "b": jnp.ones(2, jnp.bfloat16)}
    fa.save_model(path, params)
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole)):
        flipped = whole[place] ^ (0xFF if place % 2 else 1 << place % 8)
        path.write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
        try:
            assert_same_bits(fa.load_model(path, params), params)
        except ValueError as error:
            assert "model.npz" in str(error)  # noqa: PT017
            refused += 1
    assert refused > len(whole) / 2
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"model\.npz: not .* copy it again, or save"):
            fa.load_model(path, params)


GOOD = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(2, ml_dtypes.bfloat16)}


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (GOOD | {"a": np.zeros((3, 2), np.float32)}, "a is float32[3, 2] in `like` and float32[2"),
        (GOOD | {"b": np.zeros(2, np.float16)}, "b is float16[2] in `like` and bfloat16[2] in"),
        (GOOD | {"b": np.zeros(2, np.uint16)}, "b is uint16[2] in `like` and bfloat16[2] in"),
        (GOOD | {"c": np.zeros(2)}, "params/c is float64[2] in `like` and missing"),
        ({"a": GOOD["a"]}, "has 'params/b', which `like` does not have"),
        (fa.Model(GOOD, {"m": np.zeros(2)}), "statistics/m is float64[2] in `like` and missing"),
    ],
)
def test_other_models_are_refused(path, like, message):
    fa.save_model(path, GOOD)
    with pytest.raises(ValueError, match=re.escape(message)) as told:
        fa.load_model(path, like)
    assert "model.npz" in str(told.value)


STATE = fa.FederatedState((), (), (), (), np.uint32(0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (STATE, "a state is given where a model is needed; give state.model"),
        ({"a": "text"}, "params/a is of type <U4"),
        ({"a": jax.random.key(0)}, "Use jax.random.key_data"),
        ({"a": np.array([None])}, "params/a is of type object"),
        (jax.eval_shape(lambda: {"a": jnp.ones(2)}), "params/a is of type object"),
    ],
)
def test_what_cannot_be_saved(path, given, message):
    with pytest.raises(TypeError, match=message):
        fa.save_model(path, given)
    assert not path.exists()


def test_which_files_are_written_and_read(path):
    """One is replaced only if that is asked for."""
    zeros, ones = {"a": np.zeros(1)}, {"a": np.ones(1)}
    fa.save_model(path, zeros)
    for where, model, message in (
        (path, ones, "is not a new file .* give overwrite=True"),
        (path.with_name("b.npz"), {"a": {"b": np.ones(2)}, "a/b": np.ones(2)}, "'params/a/b'"),
        ("model", ones, "path='model' is not a new file MODEL.npz"),
        (path / "b.npz", ones, "cannot be written"),
    ):
        with pytest.raises(ValueError, match=message):
            fa.save_model(where, model)
    with pytest.raises(TypeError, match="overwrite=1 is not of type bool"):
        fa.save_model(path, ones, overwrite=1)
    fa.save_model(path, ones, overwrite=True)
    assert fa.load_model(path, zeros)["a"] == 1
    assert [entry.name for entry in path.parent.iterdir()] == ["model.npz"]
    with pytest.raises(ValueError, match=r"path=.model. is not a file MODEL.npz; name one$"):
        fa.load_model("model", ones)
    with pytest.raises(ValueError, match="there is no such file"):
        fa.load_model(path.with_name("other.npz"), ones)
    with pytest.raises(TypeError, match=r"give state\.model"):
        fa.load_model(path, STATE)
