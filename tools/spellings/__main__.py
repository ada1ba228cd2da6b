"""``python -m tools.spellings``."""

import sys

from tools.spellings.run import main

sys.exit(main())
