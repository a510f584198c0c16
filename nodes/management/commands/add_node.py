"""``manage.py add_node NAME``: make a row for a machine and print the one command to run there."""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from nodes import services
from portal.actor import Actor
from portal.errors import DomainError


class Command(BaseCommand):
    """Adds a node and shows its enrolment command, once."""

    help = "Add a node and print the command that enrols the machine. The token in it works once."

    def add_arguments(self, parser: CommandParser) -> None:
        """Name, place, and where renters will reach its SSH gateway."""
        parser.add_argument("name", help="lower-case letters, digits and hyphens, for example ams-gpu-02")
        parser.add_argument("--site", default="", help="where it stands, for people")
        parser.add_argument("--ssh-host", default="", help="name or address renters use; default: where it enrols from")
        parser.add_argument("--ssh-port", type=int, default=None, help="port renters use; default: SSH_PORT")
        parser.add_argument("--json", action="store_true", help="print node_id, name, token and command as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the command, or say which value is wrong."""
        given = {name: options[name] for name in ("name", "site", "ssh_host", "ssh_port")}
        try:
            node, token = services.add_node(**given, actor=Actor.system("add_node"))
        except DomainError as error:
            raise CommandError(error.detail) from error
        command = services.enrol_command(node, token)
        if options["json"]:
            self.stdout.write(json.dumps({"node_id": node.pk, "name": node.name, "token": token, "command": command}))
        else:
            self.stdout.write(
                f"Added {node.name} ({node.pk}). Run this on the machine, within 24 hours:\n\n  {command}\n"
            )
