"""An encoder of `tf.train.Example`, from its description alone."""

import struct


def varint(number):
    """7 bits in each byte, the lowest first; a negative number has 64 bits."""
    number %= 2**64
    content = bytearray()
    while number > 127:
        content.append(number & 127 | 128)
        number >>= 7
    return bytes([*content, number])


def field(number, content, wire=2):
    key = varint(number << 3 | wire)
    return key + (varint(len(content)) + content if wire == 2 else content)


def feature(values, packed=True):
    """A Feature of texts, floats or integers."""
    if all(isinstance(value, bytes) for value in values):
        return field(1, b"".join(field(1, value) for value in values))
    is_float = isinstance(values[0], float)
    parts = [struct.pack("<f", v) if is_float else varint(int(v)) for v in values]
    if packed:
        content = field(1, b"".join(parts))
    else:
        content = b"".join(field(1, part, wire=5 if is_float else 0) for part in parts)
    return field(2 if is_float else 3, content)


def example(packed=True, **features):
    """An Example of lists of texts, floats or integers."""
    entries = (
        field(1, field(1, name.encode()) + field(2, feature(values, packed)))
        for name, values in features.items()
    )
    return field(1, b"".join(entries))
