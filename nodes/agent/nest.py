"""Where network holders set out from: their image, and the container with the empty network that they leave."""

import threading
from pathlib import Path

from nodes.agent.engine import Engine
from nodes.agent.failures import EngineError
from nodes.agent.holderbox import IMAGE, image_archive, image_tag, nest_body
from nodes.agent.log import logger
from nodes.agent.namespaces import network_of

PREFIX = "lessor-nest-"
HOLDER_PROGRAM = Path("host") / "holder"  # in the bundle


class Nest:
    """The nest of one node, made when it is needed; safe to use from several threads.

    `program` is bundle/host/holder.
    """

    def __init__(self, engine: Engine, node_id: str, program: Path) -> None:
        self._engine = engine
        self._node_id = node_id
        self._program = program
        self._lock = threading.Lock()
        self._image = ""
        self._container = ""
        self._pid = 0
        self._network = 0
        self.possible = program.is_file()
        if not self.possible:
            logger.warning("%s is missing: every lease makes its own network", program)

    def image(self) -> str:
        """The name of the holders' image, which the engine has afterwards.

        Raises:
            EngineError, OSError: it cannot be made.
        """
        with self._lock:
            if not self._image:
                program = self._program.read_bytes()
                tag = image_tag(program)
                if not self._engine.local_image(f"{IMAGE}:{tag}"):
                    self._engine.import_image(IMAGE, tag, image_archive(program))
                self._image = f"{IMAGE}:{tag}"
            return self._image

    def ensure(self) -> str:
        """The id of the nest's container, which runs afterwards.

        Raises:
            EngineError, OSError: it cannot be started.
        """
        image = self.image()
        with self._lock:
            lives = self._pid and network_of(self._pid) == self._network
            if not lives and not self._find():
                self._make(image)
            return self._container

    def forget(self) -> None:
        """Something failed: look again at what the engine has, before the next holder."""
        with self._lock:
            self._image, self._pid = "", 0

    def find(self) -> None:
        """Learn of a nest that an earlier agent left."""
        with self._lock:
            self._find()

    def is_elsewhere(self, pid: int) -> bool:
        """Whether a process lives in a network namespace that is neither the nest's nor the machine's."""
        return network_of(pid) not in {0, self._network, network_of("self")}

    def _find(self) -> bool:
        facts = self._engine.inspect(PREFIX + self._node_id)
        if not (facts and facts.running):
            return False
        self._container, self._pid, self._network = facts.id, facts.pid, network_of(facts.pid)
        return bool(self._network)

    def _make(self, image: str) -> None:
        name = PREFIX + self._node_id
        self._engine.remove(name)
        self._engine.start(self._engine.create(name, nest_body(image, self._node_id)))
        if not self._find():
            raise EngineError("the network nest ended at once")
