"""Programs to run beside a server; see README.md."""

import importlib.util
import sys
from pathlib import Path

# In a checkout the client need not be installed.
if importlib.util.find_spec("agentstate_client") is None:
    sys.path.append(str(Path(__file__).resolve().parent.parent / "clients" / "python"))
