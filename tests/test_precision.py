"""Products on CUDA devices are exact for any settings of torch, and the settings are restored."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from ntkit._precision import exact_products
from ntkit.models import _statistics

torch = pytest.importorskip("torch")
FLAGS = torch.backends.cuda.matmul
REDUCED = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


@pytest.fixture
def settings():
    """Bring all settings back."""
    before = {name: getattr(FLAGS, name) for name in ("fp32_precision", *REDUCED)}
    yield
    for name, value in before.items():
        setattr(FLAGS, name, value)


def current():
    return [getattr(FLAGS, name) for name in ("fp32_precision", *REDUCED)]


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("fp16", [True, False])
def test_settings_come_back(precision, bf16, fp16):
    FLAGS.fp32_precision = precision
    for name, value in zip(REDUCED, (bf16, fp16), strict=True):
        setattr(FLAGS, name, value)
    with contextlib.suppress(KeyError), exact_products():
        assert current() == ["ieee", False, False]
        raise KeyError
    assert current() == [precision, bf16, fp16]


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("older", ["highest", "high", "medium"])
@pytest.mark.parametrize("convolutions", [True, False])
def test_older_names_can_be_read_and_come_back(older, convolutions):
    """torch raises an error if the older names allow what the newer names forbid."""
    names = [(FLAGS, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")]
    precision, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision(older)
        torch.backends.cudnn.allow_tf32 = convolutions
        before = [getattr(flags, name) for flags, name in names]
        with exact_products():
            assert [getattr(flags, name) for flags, name in names] == [False, False]
            assert torch.get_float32_matmul_precision() == "highest"
        assert [getattr(flags, name) for flags, name in names] == before
        assert torch.get_float32_matmul_precision() == older
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = cudnn


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_convolutions_are_exact_too(precision):
    conv = torch.backends.cudnn.conv
    before = conv.fp32_precision
    try:
        conv.fp32_precision = precision
        with exact_products():
            assert conv.fp32_precision == "ieee"
        assert conv.fp32_precision == precision
    finally:
        conv.fp32_precision = before


@pytest.mark.usefixtures("settings")
def test_sums_in_one_step_stay_so():
    """With (False, False) the user has also said that sums are not to be split."""
    name = REDUCED[0]
    if not hasattr(FLAGS, f"{name}_split_k"):
        pytest.skip("this torch has no such setting")
    setattr(FLAGS, name, (False, False))
    with exact_products():
        pass
    assert not getattr(FLAGS, f"{name}_split_k")


class OnDevice:
    """Features that claim to be on a CUDA device, and record the precision of their products."""

    device = SimpleNamespace(type="cuda")

    def __init__(self, values):
        self.values, self.seen = values, []

    @property
    def T(self):
        return self

    def __matmul__(self, other):
        self.seen.append(current())
        return other.values.T @ other.values


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_gram_matrices_on_devices_slow_at_float64(precision, monkeypatch, rng):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    FLAGS.fp32_precision = precision
    Z = rng.standard_normal((20, 3)).astype(np.float32)
    total, features = torch.ones((3, 3), dtype=torch.float64), OnDevice(torch.from_numpy(Z))
    _statistics._add_on_device(total, features)
    assert features.seen == [["ieee", False, False]]
    assert FLAGS.fp32_precision == precision
    np.testing.assert_allclose(total.numpy(), 1 + Z.T @ Z, rtol=1e-6)


@pytest.mark.usefixtures("settings")
def test_settings_come_back_after_threads_that_overlap():
    """The first thread leaves while the second one is inside: it must find exact products to its end."""
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    seen = []

    def first():
        with exact_products():
            first_is_in.set()
            second_is_in.wait(10)
        first_is_out.set()

    def second():
        first_is_in.wait(10)
        with exact_products():
            second_is_in.set()
            first_is_out.wait(10)
            seen.append(current())

    FLAGS.fp32_precision = "tf32"
    before = current()
    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [["ieee", False, False]]
    assert current() == before


@pytest.mark.usefixtures("settings")
def test_settings_come_back_after_calls_within_others():
    FLAGS.fp32_precision = "tf32"
    with exact_products():
        with exact_products():
            pass
        assert current() == ["ieee", False, False]
    assert FLAGS.fp32_precision == "tf32"
