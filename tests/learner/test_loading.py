"""Before TensorFlow is imported: the user's Keras changes nothing and is left as it is; a library of CUDA is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from batches import IMAGE, VECTOR
from psutil import _psutil_linux

from ga3c.envs.base import EnvSpec
from ga3c.learner.tensorflow.loading import before_tensorflow
from ga3c.settings.messages import ConfigError

OWN = '{"floatx": "float64", "image_data_format": "channels_first", "backend": "jax", "epsilon": 0.001}'


@pytest.mark.parametrize("spec", [IMAGE, pytest.param(VECTOR, marks=pytest.mark.slow)], ids=["image", "vector"])
def test_a_policy_is_the_same_whatever_the_users_keras_does(tmp_path: Path, spec: EnvSpec) -> None:
    (tmp_path / "keras.json").write_text(OWN)
    program = (
        "import numpy as np\n"
        "from ga3c.learner.tensorflow.loading import before_tensorflow\n"
        "before_tensorflow()\n"
        "from ga3c import Config\n"
        "from ga3c.envs.base import EnvSpec\n"
        "from ga3c.learner.learner import Learner\n"
        "import keras\n"
        f"spec = EnvSpec('', {spec.observation_shape}, np.dtype({spec.observation_dtype.str!r}), 6, 1)\n"
        "seen = np.ones((2, *spec.observation_shape), spec.observation_dtype)\n"
        "found, _ = Learner(Config(precision='float32'), spec).predict(seen)\n"
        "print(found['policy'].dtype, found['policy'].tolist(), found['value'].tolist())\n"
        "print(keras.config.floatx(), keras.config.image_data_format(), keras.config.dtype_policy().name)\n")
    told = {}
    for home in ("", str(tmp_path)):
        environment = {**os.environ, "KERAS_HOME": home or str(tmp_path / "none"),
                       "KERAS_BACKEND": "torch" if home else "tensorflow"}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False,
                              env=environment)
        assert done.returncode == 0, done.stderr
        told[home] = done.stdout.splitlines()
    (plain, ours), (same, theirs) = told.values()
    assert plain == same and ours == "float32 channels_last float32"
    assert theirs == "float64 channels_first float64", "which a notebook may need"


def test_keras_that_was_imported_with_another_backend_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(config=SimpleNamespace(backend=lambda: "jax")))
    with pytest.raises(ConfigError, match="KERAS_BACKEND: Keras has been imported with 'jax'; ga3c needs 'tensorflow'"):
        before_tensorflow()


def test_the_library_of_cuda_that_tensorflow_does_not_find_is_loaded_before_it(tmp_path: Path) -> None:
    place = tmp_path / "nvidia" / "cusolver" / "lib"
    place.mkdir(parents=True)
    shutil.copy(_psutil_linux.__file__, place / "libcusolver.so.11")  # some library
    (place / "libcusolver.so.12").write_text("no library")
    program = ("from ga3c.learner.tensorflow.loading import before_tensorflow, cuda_libraries\n"
               "print(cuda_libraries('libcudnn.so.*'), len(cuda_libraries('libcusolver.so.*')))\n"
               "before_tensorflow()\nprint('libcusolver.so.11' in open('/proc/self/maps').read())")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])})
    assert done.stdout.split() == ["[]", "2", "True"]
