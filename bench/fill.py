"""A portal with much in it: `python bench/fill.py EMAIL NODES LEASES`, run with a portal's environment.

Nodes of eight GPUs that nobody runs, and leases of that person's tenant on them: three in five running, the rest over.
Prints `{"model", "running": [lease ids]}`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import django

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, not as a module
django.setup()

from django.db import transaction  # noqa: E402  # after the set-up

from portal.models import User  # noqa: E402
from rental.states import State  # noqa: E402
from tests import make  # noqa: E402

MODEL, MEMORY, GPUS = "NVIDIA A100-SXM4-80GB", 85_899_345_920, 8


@transaction.atomic
def main(email: str, nodes: int, leases: int) -> None:
    """Fill, and tell which leases run."""
    tenant = make.tenant_of(User.objects.get(email=email))
    price = make.make_price(MODEL)
    made = [
        make.make_node(f"filled-{n:03d}", gpus=GPUS, gpu_model=MODEL, memory_bytes=MEMORY, simulated=True)
        for n in range(nodes)
    ]
    running = []
    for number in range(leases):
        state = State.RUNNING if number % 5 < 3 else State.ENDED  # noqa: PLR2004  # three in five
        lease = make.make_lease(
            tenant, state=state, node=made[number % nodes], price_version=price, gpu_model=MODEL, name=f"job {number}"
        )
        if state == State.RUNNING:
            running.append(lease.pk)
    sys.stdout.write(json.dumps({"model": MODEL, "running": running}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
