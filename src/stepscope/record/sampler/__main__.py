"""Start the sampling process."""

import sys

from stepscope.record.sampler.loop import main

sys.exit(main())
