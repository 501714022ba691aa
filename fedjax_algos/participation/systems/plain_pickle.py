"""Pickles of plain values, read by Python's own `Unpickler` in a process of its own.

A pickle is a program that calls what it names. Here it can name only what numbers of NumPy need;
every other name is refused before it is looked up. A short pickle can still take any amount of
memory (by an index of its memo) or of time (by the hash of a key that holds one tuple many times).
So the process, which is this file and imports nothing of the package, has limits.
"""

import contextlib
import io
import json
import pickle
import struct
import subprocess
import sys

_START_BYTES = 2**28  # of address space, and 64 bytes for each byte of the pickle
_MEMORY_OF_PICKLE = 64
_SECONDS = 2  # of CPU, and one for each MiB of the pickle
_FORMATS = {"f2": "e", "f4": "f", "f8": "d", "i1": "b", "i2": "h", "i4": "i", "i8": "q"}
_FORMATS |= {f"u{kind[1]}": code.upper() for kind, code in _FORMATS.items() if kind[0] == "i"}


def read_plain_pickle(content: bytes) -> bytes:
    """A pickle of dictionaries, lists, tuples, texts and numbers as a text of JSON; ValueError."""
    command = [sys.executable, "-I", "-S", __file__]
    done = subprocess.run(command, input=content, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ValueError(reason[0] if reason else "its values need too much time or memory")
    return done.stdout


class _Type:
    """A NumPy type of numbers, as `numpy.dtype` in a pickle."""

    def __init__(self, code: str, *_: object):
        self.format, self.order = _FORMATS[code], "="

    def __setstate__(self, state: tuple) -> None:
        self.order = state[1].replace("|", "=")


def _scalar(kind: _Type, content: bytes) -> float:
    return struct.unpack(kind.order + kind.format, content)[0]


_NAMES = {
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    # how Python 2 and protocols 0 to 2 write bytes
    ("_codecs", "encode"): lambda text, _: text.encode("latin1"),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"names {module}.{name}; only plain values are read")
        return _NAMES[module, name]

    def persistent_load(self, _: object) -> object:
        raise pickle.UnpicklingError("refers to what is not in the pickle")


def _main() -> None:
    """Writes the value of the pickle on standard input as JSON, or a line of what is wrong."""
    content = sys.stdin.buffer.read()
    try:
        import resource

        memory = _START_BYTES + _MEMORY_OF_PICKLE * len(content)
        seconds = _SECONDS + len(content) // 2**20
        for limit, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds)):
            with contextlib.suppress(ValueError):  # where a lower limit holds already
                resource.setrlimit(limit, (most, most))
        file = io.BytesIO(content)
        value = json.dumps(_Unpickler(file).load())
        if file.read(1):
            raise ValueError("it does not end where its value ends")
    except Exception as error:  # damaged pickles raise many types
        sys.exit(" ".join(f"{type(error).__name__}: {error}".split()))
    sys.stdout.write(value)


if __name__ == "__main__":
    _main()
