"""The node agent: runs as root on a GPU machine and makes what the portal wants there true.

Nothing here imports Django or a model; what the portal and the agent say to each other is docs/node-protocol.md.
"""

VERSION = "0.1.0"
