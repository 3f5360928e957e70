"""Makes the Python that the programs run under: python -m benchmarks.scripts.environment VENV.

A virtual environment beside the one that calls, whose packages (torch among them) it sees; what else the programs
import is installed into it alone, without dependencies, so that torch stays the one that is there.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

_PACKAGES = (
    "antlr4-python3-runtime==4.13.2", "contourpy==1.3.3", "cycler==0.12.1", "datasets==5.2.0", "diffusers==0.42.1",
    "dill==0.4.1", "docstring-parser==0.18.0", "farama-notifications==0.0.6", "fonttools==4.68.0", "gymnasium==1.4.0",
    "importlib-resources==7.1.0", "jsonargparse==4.53.0", "kiwisolver==1.5.1", "matplotlib==3.11.2",
    "multiprocess==0.70.19", "pandas==3.1.1", "peft==0.21.2", "pyarrow==26.0.1", "pyparsing==3.3.3",
    "python-dateutil==4.0.0", "pytz==2026.6", "shtab==1.13.0", "six==1.17.0", "timm==1.0.31", "torchvision==0.28.0",
    "trl==1.16.0", "typeguard==4.6.0", "typeshed-client==2.14.0", "tyro==1.0.17", "xxhash==4.1.0",
)  # fmt: skip

# The wheel of torchvision was built for CUDA: beside a torch for CPU its compiled operators do not load, and it needs
# the schemas of two of them to be imported at all. The programs use none of them.
_SCHEMAS = """

if not _has_ops():
    _declared = torch.library.Library("torchvision", "DEF")
    _declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""

# Made batches of CIFAR-10 have digests of their own; with the published ones torchvision would fetch them anew.
_DIGESTS = """

for _entry in [*CIFAR10.train_list, *CIFAR10.test_list]:
    _entry[1] = None
CIFAR10.meta["md5"] = None
"""


def make(folder: Path) -> None:
    """Make it, or bring it up to date."""
    venv.create(folder, with_pip=False)
    python = str(folder / "bin" / "python")
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    seen = [one for one in sys.path if one.endswith("site-packages")]
    (packages / "seen.pth").write_text("".join(f"{one}\n" for one in seen))
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--quiet"]
    subprocess.run([*pip, *_PACKAGES], check=True)
    for name, addition in (("extension.py", _SCHEMAS), ("datasets/cifar.py", _DIGESTS)):
        changed = packages / "torchvision" / name
        text = changed.read_text()
        if addition not in text:
            changed.write_text(text + addition)


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve())
