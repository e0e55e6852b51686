"""`python -m hotshoe.cli`, where the `hotshoe` script is not on the path."""

import sys

from hotshoe.cli.main import main

sys.exit(main())
