"""SCAFFOLD's change of the control is sent as it is, so that a codec encodes the delta alone."""


def exact_controls(algorithm):
    """The parts of the update are the delta, and a part that wrappers leave alone."""
    parts = algorithm.traits.parts._replace(control_change="count")
    return algorithm._replace(traits=algorithm.traits._replace(parts=parts))
