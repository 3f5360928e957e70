"""The readers of the full data sets, on small archives of the same form; none is downloaded."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tarfile
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope import workloads
from stepscope.errors import DataUnavailable, MissingDependency, StepscopeError, UsageError
from stepscope.workloads.data import cache, catalogue, cifar, folder, idx, iwslt, motion, pictures, speech, squad, text
from stepscope.workloads.data.cache import DataSet
from stepscope.workloads.data.source import Batch, Splits
from stepscope.workloads.data.text import Windows


