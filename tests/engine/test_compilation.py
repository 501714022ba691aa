"""Compilation is measured, and programs that are kept in a folder are not compiled again."""

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from fedjax_algos.engine.compilation import Compilation, keep_compiled, measure_compilation

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
    assert compiled.seconds == pytest.approx(sum(phases))
    assert first.endswith(" s to compile 1 program")
    assert str(Compilation(3, 2, 1.0)) == "1.0 s to compile 3 programs, 2 of them from the cache"
    with measure_compilation() as compiled:
        lowered = jax.jit(lambda x: 5 * x).lower(X)
        assert compiled.is_compiling
        lowered.compile()
        assert not compiled.is_compiling


def test_kept_programs_are_read_and_new_ones_are_compiled(tmp_path):
    """Small ones, too; they are known by what they compute."""
    found = []
    keep_compiled(tmp_path / "new" / "kept")
    try:
        for factor in (7, 7, 8):
            with measure_compilation() as compiled:
                jax.jit(lambda x, factor=factor: factor * x)(X)
            found.append((compiled.programs, compiled.from_cache))
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        reset_cache()
    assert found == [(1, 0), (1, 1), (1, 0)]


def test_a_folder_that_cannot_be_written_to_is_refused(here):
    (here / "full").write_text("mine")
    reasons = {"full": "File exists", "full/in": "Not a directory", "": "it has no name"}
    for folder, reason in reasons.items():
        with pytest.raises(ValueError, match=rf"compilation_cache='{folder}' .*\({reason}\)"):
            keep_compiled(folder)
    assert jax.config.jax_compilation_cache_dir is None
