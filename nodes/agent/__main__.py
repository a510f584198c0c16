"""Entry point of `python -m nodes.agent`."""

import sys

from nodes.agent.main import main

sys.exit(main())
