"""`tf.train.Example`, the record of TensorFlow's data sets, without TensorFlow.

An Example is a protocol buffer: features by name, each a list of bytes, of float32 or of int64
(https://www.tensorflow.org/api_docs/python/tf/train/Example). It has no shapes.
"""

import functools
from typing import Any

import numpy as np

_PACKAGE = "fedjax_algos"


def parse_example(content: bytes) -> dict[str, np.ndarray | list[bytes]]:
    """The features of a serialised Example: float32[k], int64[k] or a list of k bytes."""
    from google.protobuf.message import DecodeError

    try:
        example = _example_type().FromString(content)
    except DecodeError as error:
        raise ValueError("an example is no tf.train.Example") from error
    features: dict[str, np.ndarray | list[bytes]] = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = getattr(feature, kind).value if kind else ()
        dtype = {"float_list": np.float32, "int64_list": np.int64}.get(kind)
        features[name] = list(values) if dtype is None else np.array(values, dtype)
    return features


@functools.cache
def _example_type() -> Any:
    """The type of an Example, by its description in tensorflow/core/example/example.proto."""
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

    def field(name: str, number: int, kind: str, repeated: bool = False, **more: Any) -> dict:
        label = "LABEL_REPEATED" if repeated else "LABEL_OPTIONAL"
        if kind[0].isupper():
            more |= {"typeName": f".{_PACKAGE}.{kind}"}
            kind = "message"
        return {
            "name": name,
            "number": number,
            "label": label,
            "type": f"TYPE_{kind.upper()}",
        } | more

    lists = {"BytesList": "bytes", "FloatList": "float", "Int64List": "int64"}
    entry = {
        "name": "FeatureEntry",
        "field": [field("key", 1, "string"), field("value", 2, "Feature")],
        "options": {"mapEntry": True},
    }
    kinds = [
        field(f"{kind}_list", number, name, oneofIndex=0)
        for number, (name, kind) in enumerate(lists.items(), start=1)
    ]
    messages = [
        *({"name": n, "field": [field("value", 1, k, repeated=True)]} for n, k in lists.items()),
        {"name": "Feature", "field": kinds, "oneofDecl": [{"name": "kind"}]},
        {
            "name": "Features",
            "field": [field("feature", 1, "Features.FeatureEntry", repeated=True)],
            "nestedType": [entry],
        },
        {"name": "Example", "field": [field("features", 1, "Features")]},
    ]
    facts = {"name": "example.proto", "package": _PACKAGE, "syntax": "proto3"}
    pool = descriptor_pool.DescriptorPool()
    pool.Add(
        json_format.ParseDict(
            facts | {"messageType": messages}, descriptor_pb2.FileDescriptorProto()
        )
    )
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))
