"""``python -m tools.fuzz``."""

import sys

from tools.fuzz.run import main

sys.exit(main())
