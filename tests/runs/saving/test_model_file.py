"""Models in files: every bit comes back, damage is refused by name, and so are other models."""

import io
import re
import zipfile

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

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


def bits(leaf):
    """The shape, the type and the bytes of an array."""
    array = np.asarray(leaf)
    return array.shape, array.dtype, array.tobytes()


def assert_same_bits(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert [*map(bits, jax.tree.leaves(first))] == [*map(bits, jax.tree.leaves(second))]


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


@pytest.mark.all
def test_the_model_of_a_problem_goes_on_from_its_file(path):
    problem = fa.models.mlp((4,), 3, hidden=5)
    model = problem.init(jax.random.key(1))
    fa.save_model(path, model)
    loaded = fa.load_model(path, jax.eval_shape(problem.init, jax.random.key(0)))
    assert_same_bits(loaded, model)
    fedavg = fa.algorithms.fedavg(problem, fa.Local(batch_size=2, learning_rate=0.1, steps=1))
    state = fa.make_engine(fedavg).init(0, fa.Population(2, 1, 4), loaded)
    assert_same_bits(state.model, model)


def test_numpy_alone_reads_the_file(path):
    fa.save_model(path, MODEL)
    with np.load(path) as file:
        assert "params/layer/kernel" in file.files
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
        (GOOD | {"a": np.zeros((2, 3))}, "a is float64[2, 3] in `like` and float32[2, 3] in"),
        (GOOD | {"b": np.zeros(2, np.float16)}, "b is float16[2] in `like` and bfloat16[2] in"),
        (GOOD | {"b": np.zeros(2, np.uint16)}, "b is uint16[2] in `like` and bfloat16[2] in"),
        (GOOD | {"c": np.zeros(2)}, "params/c is float64[2] in `like` and missing"),
        ({"a": GOOD["a"]}, "has 'params/b', which `like` has not"),
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
        ({"a": jax.random.key(0)}, "params/a is of type key<fry>"),
        ({"a": np.array([None])}, "params/a is of type object"),
        (jax.eval_shape(lambda: {"a": jnp.ones(2)}), "params/a is of type ShapeDtypeStruct"),
    ],
)
def test_what_cannot_be_saved(path, given, message):
    with pytest.raises(TypeError, match=message):
        fa.save_model(path, given)
    assert not path.exists()


def test_which_files_are_written_and_read(path):
    """One is replaced only if that is asked for."""
    fa.save_model(path, {"a": jnp.zeros(1)})
    for where, model, message in (
        (path, {"a": jnp.ones(1)}, "exists; .* give overwrite=True"),
        (path.with_name("b.npz"), {"a": {"b": np.ones(2)}, "a/b": np.ones(2)}, "'params/a/b'"),
        ("model", GOOD, "path='model' has not the suffix .npz"),
        (path / "b.npz", GOOD, "cannot be written"),
    ):
        with pytest.raises(ValueError, match=message):
            fa.save_model(where, model)
    with pytest.raises(TypeError, match="overwrite=1 is not of type bool"):
        fa.save_model(path, {"a": jnp.ones(1)}, overwrite=1)
    fa.save_model(path, {"a": jnp.ones(1)}, overwrite=True)
    assert fa.load_model(path, {"a": jnp.zeros(1)})["a"] == 1
    assert [entry.name for entry in path.parent.iterdir()] == ["model.npz"]
    with pytest.raises(ValueError, match="there is no such file"):
        fa.load_model(path.with_name("other.npz"), GOOD)
    with pytest.raises(TypeError, match=r"give state\.model"):
        fa.load_model(path, STATE)


def test_pickles_run_nothing(path):
    content = io.BytesIO()
    np.save(content, np.array([print], object), allow_pickle=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("params/a.npy", content.getvalue())
    with pytest.raises(ValueError, match="allow_pickle=False"):
        fa.load_model(path, {"a": np.zeros(1)})
