"""Compilation is measured, and programs that are kept in a folder are not compiled again."""

import jax
import numpy as np
import pytest

from fedjax_algos.engine.compilation import (
    Compilation,
    keep_compiled,
    keep_in_user_cache,
    measure_compilation,
    user_cache,
)

X = np.ones(3, np.float32)


def test_a_program_is_counted_once_and_only_in_the_block():
    double = jax.jit(lambda x: 2 * x)
    with measure_compilation() as compiled:
        assert compiled == Compilation()
        double(X)
        double(X)
        first = str(compiled)
        double(X[:2])
    jax.jit(lambda x: 3 * x)(X)
    assert (compiled.programs, compiled.from_cache) == (2, 0)
    phases = compiled.trace_seconds, compiled.lower_seconds, compiled.backend_seconds
    assert min(phases) > 0
    assert compiled.seconds == pytest.approx(sum(phases) - compiled.shared_seconds)
    assert first.endswith(" s to compile 1 program")
    assert str(Compilation(3, 2, 1.0)) == "1.0 s to compile 3 programs, 2 of them from the cache"
    with measure_compilation() as compiled:
        lowered = jax.jit(lambda x: 5 * x).lower(X)
        assert compiled.is_compiling
        lowered.compile()
        assert not compiled.is_compiling


def test_seconds_of_two_threads_count_once():
    """Here three times end now, so the longest holds the two others."""
    event = "/jax/core/compile/backend_compile_duration"
    with measure_compilation() as compiled:
        for seconds in (3.0, 2.0, 5.0):
            jax.monitoring.record_event_duration_secs(event, seconds)
    assert (compiled.programs, compiled.backend_seconds) == (3, 10.0)
    assert compiled.seconds == pytest.approx(5.0, abs=0.5)


@pytest.fixture
def forget():
    """Keeps no programs after a test."""
    yield
    keep_compiled(None)


def times(factor):
    """Multiplies by a new program; returns the programs and those that were read, by number."""
    with measure_compilation() as compiled:
        np.testing.assert_array_equal(jax.jit(lambda x: factor * x)(X), factor * X)
    return compiled.programs, compiled.from_cache


@pytest.mark.usefixtures("forget")
def test_kept_programs_are_read_and_new_ones_are_compiled(tmp_path):
    """Small ones, too; they are known by what they compute."""
    keep_compiled(tmp_path / "new" / "kept")
    assert [times(7), times(7), times(8)] == [(1, 0), (1, 1), (1, 0)]
    assert (tmp_path / "new" / "kept").stat().st_mode & 0o777 == 0o700


@pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache")
@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize("damage", ["cut", "empty", "changed", "random"])
def test_a_damaged_program_is_compiled_again(tmp_path, damage):
    keep_compiled(tmp_path)
    found = [times(7), times(8)]
    first = min(tmp_path.glob("*-cache"))
    content = first.read_bytes()
    changed = bytearray(content)
    changed[len(content) // 2] ^= 255
    written = {"cut": content[: len(content) // 2], "empty": b"", "changed": bytes(changed)}
    written["random"] = np.random.default_rng(0).bytes(999)
    first.write_bytes(written[damage])
    found += sorted([times(7), times(8)])
    assert found == [(1, 0), (1, 0), (1, 0), (1, 1)]


@pytest.mark.usefixtures("forget")
def test_the_programs_that_were_used_least_recently_are_removed(tmp_path):
    keep_compiled(tmp_path)
    times(7)
    (one,) = tmp_path.glob("*-cache")
    keep_compiled(tmp_path / "bounded", max_bytes=int(2.5 * one.stat().st_size))
    found = [times(factor) for factor in (7, 8, 7, 9, 7, 8)]
    assert found == [(1, 0), (1, 0), (1, 1), (1, 0), (1, 1), (1, 0)]


@pytest.mark.usefixtures("forget")
def test_the_users_cache_is_for_the_user_alone(monkeypatch, tmp_path):
    """A kill may leave a program without its time of use, and somebody may share the folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keep_in_user_cache()
    found = [times(7)]
    (program,) = user_cache().glob("*-cache")
    program.with_name(program.name.removesuffix("cache") + "atime").unlink()
    keep_in_user_cache()
    found += [times(8), times(8), times(7)]
    assert found == [(1, 0), (1, 0), (1, 1), (1, 1)]
    assert {path.stat().st_mode & 0o777 for path in (user_cache(), user_cache().parent)} == {0o700}
    keep_compiled(None)
    user_cache().parent.chmod(0o775)
    keep_in_user_cache()
    assert jax.config.jax_compilation_cache_dir is None
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache().is_absolute()


def test_each_kind_of_processor_has_its_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    own = user_cache()
    assert own == user_cache()
    assert own.parent == tmp_path / "fedjax_algos"
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: "flags: older")
    assert user_cache() != own


def test_a_folder_that_cannot_be_written_to_is_refused(here):
    (here / "full").write_text("mine")
    reasons = {"full": "File exists", "full/in": "Not a directory", "": "it has no name"}
    for folder, reason in reasons.items():
        with pytest.raises(ValueError, match=rf"compilation_cache='{folder}' .*\({reason}\)"):
            keep_compiled(folder)
    assert jax.config.jax_compilation_cache_dir is None
