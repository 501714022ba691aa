"""Placement: layouts as chunk sizes, and which slot computes which dispatch."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedjax_algos as fa
from fedjax_algos.engine.placed.devices import client_mesh
from fedjax_algos.engine.slots import (
    Placement,
    chunk_size,
    default_layout,
    fill_slots,
    round_up_size,
)


def test_layouts_are_chunk_sizes():
    sizes = {"vmapped": 7, "sequential": 1, 3: 3, "3": 3, 99: 7, "auto": 1}
    assert {layout: chunk_size(layout, 7) for layout in sizes} == sizes


@pytest.mark.parametrize(
    ("backend", "layout"), [("cpu", "sequential"), ("gpu", "vmapped"), ("tpu", "vmapped")]
)
def test_auto_is_a_fixed_rule_for_each_backend(monkeypatch, backend, layout):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert default_layout() == layout
    assert chunk_size("auto", 7) == chunk_size(layout, 7)


def test_there_are_few_numbers_of_slots():
    sizes = [round_up_size(number) for number in range(1, 18)]
    assert sizes == [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16, 16, 16, 16, 24]


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.data())
@settings(max_examples=150, deadline=None)
def test_each_dispatch_has_one_slot(cohort_size, size, devices, draw):
    mesh = None if devices == 1 else client_mesh(devices)
    steps = draw.draw(arrays(np.int32, (2, cohort_size), elements=st.integers(1, 50)))
    order = Placement(size, mesh).slot_order(steps)
    chunk = min(size, -(-cohort_size // devices))
    assert order.shape[1] % (chunk * devices) == 0
    assert order.shape[1] - cohort_size < chunk * devices
    for line in order:
        assert sorted(line[line >= 0].tolist()) == list(range(cohort_size))


@given(st.integers(1, 12), st.integers(1, 4), st.integers(2, 4), st.data())
@settings(max_examples=150, deadline=None)
def test_each_dispatch_has_one_slot_on_its_device(cohort_size, size, devices, draw):
    steps = draw.draw(arrays(np.int32, (3, cohort_size), elements=st.integers(1, 50)))
    device_of = draw.draw(arrays(np.int32, (3, cohort_size), elements=st.integers(0, devices - 1)))
    placement = Placement(size, client_mesh(devices))
    order = placement.slot_order(steps, device_of)
    num_slots = order.shape[1] // devices
    fullest = max(np.bincount(line).max() for line in device_of)
    assert fullest <= num_slots <= max(1.5 * fullest, fullest + size)
    assert num_slots % placement.chunk(order.shape[1]) == 0
    lines = order.reshape(3, devices, num_slots)
    for line, own, work in zip(lines, device_of, steps, strict=True):
        assert sorted(line[line >= 0].tolist()) == list(range(cohort_size))
        for device, slots in enumerate(line):
            filled = slots[slots >= 0]
            assert (own[filled] == device).all()
            assert (np.diff(work[filled]) <= 0).all()  # similar dispatches share a chunk
            assert (slots[len(filled) :] == -1).all()


def test_similar_dispatches_share_a_chunk_and_devices_share_the_work():
    steps = np.array([1, 8, 2, 7, 3, 6, 4, 5])
    chunked = steps[Placement(2).slot_order(steps)]
    assert chunked.tolist() == [8, 7, 6, 5, 4, 3, 2, 1]
    halves = steps[Placement("sequential", client_mesh(2)).slot_order(steps)]
    assert halves.tolist() == [8, 5, 4, 1, 7, 6, 3, 2]
    unsorted = Placement("sequential").slot_order(steps)
    assert unsorted.tolist() == list(range(8))


def test_an_empty_slot_has_no_client_and_no_steps():
    dispatches = fa.Dispatch(*np.zeros((9, 3), np.int32))
    dispatches = dispatches._replace(client=np.arange(3), num_steps=np.full(3, 2))
    slots = fill_slots(dispatches, np.array([2, -1, 0, 1], np.int32), num_clients=4)
    assert slots.client.tolist() == [2, 4, 0, 1]
    assert slots.num_steps.tolist() == [2, 0, 2, 2]
