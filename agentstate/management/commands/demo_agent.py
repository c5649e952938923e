"""manage.py demo_agent URL"""

import os
import signal
from argparse import ArgumentParser
from typing import Any

import httpx
from django.core.management.base import BaseCommand, CommandError

from agentstate.demo import DemoAgent


class Command(BaseCommand):
    help = "Let the demo agent work; `serve` starts it unless AGENTSTATE_DEMO is 0."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("url")

    def handle(self, *args: Any, **options: Any) -> None:
        key = os.environ.get("AGENTSTATE_DEMO_KEY")
        if not key:
            raise CommandError("AGENTSTATE_DEMO_KEY holds no API key")
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=options["url"], headers=headers) as http:
            agent = DemoAgent(http)
            signal.signal(signal.SIGTERM, lambda *_: agent.stopping.set())
            try:
                agent.run()
                # Its turns done, it stays: an ended process would be started again,
                # and somebody may yet approve a payment.
                agent.work_on_the_plan()
            except httpx.HTTPError as exc:
                if not agent.stopping.is_set():
                    raise CommandError(f"the server does not answer: {exc}") from exc
