from agentstate.settings import *  # noqa: F403
from agentstate.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.ops.next_version"]
