"""`python -m agents.tools.ontology import ...`: builds a database (see `database`)."""

import sys

from agents.tools.ontology.database import main

if __name__ == "__main__":
    sys.exit(main())
