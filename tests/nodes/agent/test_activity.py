"""How measured activity is kept until a heartbeat got through, and what CPU and network are made of."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.agent.activity import Activity, Signal, Unsent
from nodes.agent.activity_counters import cpu_file, interface_bytes

# Until a heartbeat got through ----------------------------------------------------------------------------------------

signal_values = st.one_of(st.none(), st.integers(0, 100))
activities = st.builds(
    lambda seconds, gpu, typed, more: Activity(seconds, {"gpu_percent": gpu, "ssh_input": typed, **more}),
    st.integers(1, 30), signal_values, st.one_of(st.none(), st.booleans()),
    st.one_of(st.just({}), st.builds(lambda value: {"mig_processes": value}, signal_values)),
)  # fmt: skip
steps = st.lists(st.one_of(activities, st.sampled_from(["offer", "answered", "lost"])), max_size=40)


def strongest(values: list[Signal]) -> Signal:
    """The rule of the node protocol in one line: happened, else unknown, else the highest."""
    return True if True in [v for v in values if isinstance(v, bool)] else None if None in values else max(values)  # type: ignore[type-var]  # no None is left


def told(measured: list[Activity]) -> dict[str, object] | None:
    """What a heartbeat must say of these stretches."""
    names = {name for activity in measured for name in activity.signals}
    signals = {name: strongest([a.signals[name] for a in measured if name in a.signals]) for name in names}
    return {"covers_s": sum(a.covers_s for a in measured), **signals} if measured else None


@given(steps)
@settings(max_examples=100, deadline=None)
def test_whatever_heartbeats_are_lost_the_portal_hears_of_every_sample_once(steps: list[Activity | str]) -> None:
    unsent = Unsent()
    waiting: list[Activity] = []  # what the portal has not confirmed
    offered = 0  # how many of these the heartbeat under way carries
    heard: list[dict[str, object]] = []
    measured = [step for step in steps if isinstance(step, Activity)]
    for step in [*steps, "offer", "answered"]:
        if isinstance(step, Activity):
            unsent.add(step)
            waiting.append(step)
        elif step == "offer":
            activity = unsent.offer()
            offered = len(waiting)
            assert (activity.as_json() if activity else None) == told(waiting)
        elif step == "answered":
            heard += [body] if (body := told(waiting[:offered])) else []
            unsent.answered()
            waiting, offered = waiting[offered:], 0
        else:
            assert step == "lost"  # the request or its answer: the agent does not know, and does nothing
    assert not waiting
    assert sum(float(str(body["covers_s"])) for body in heard) == sum(a.covers_s for a in measured)
    everything = told(measured) or {}
    for name in everything.keys() - {"covers_s"}:
        assert strongest([body[name] for body in heard if name in body]) == everything[name]  # type: ignore[misc]  # as told


def test_what_could_not_be_read_hides_no_sample_that_is_certain() -> None:
    unknown = Activity(15, {"gpu_percent": None, "ssh_input": None})
    quiet = Activity(15, {"gpu_percent": 3, "ssh_input": False})
    typed = Activity(15, {"gpu_percent": 3, "ssh_input": True})
    assert quiet.merge(unknown).signals == {"gpu_percent": None, "ssh_input": None}
    assert unknown.merge(typed).signals == {"gpu_percent": None, "ssh_input": True}


# CPU and network ------------------------------------------------------------------------------------------------------


def made_proc(tmp_path: Path, groups: str, mounts: list[str]) -> Path:
    """A /proc with one process 7, and the cgroup mounts of its machine."""
    for directory in ("7", "self"):
        (tmp_path / directory).mkdir()
    (tmp_path / "7" / "cgroup").write_text(groups)
    (tmp_path / "self" / "mountinfo").write_text("\n".join(mounts))
    return tmp_path


def test_the_cpu_time_is_that_of_the_containers_cgroup_in_both_kinds_of_cgroup(tmp_path: Path) -> None:
    for name, root in (("v1", "/"), ("v2", "/")):
        base = tmp_path / name
        (base / "fs" / "docker" / "abc").mkdir(parents=True)
        kind, options = ("cgroup", "rw,cpu,cpuacct") if name == "v1" else ("cgroup2", "rw,nsdelegate")
        groups = "8:pids:/x\n5:cpu,cpuacct:/docker/abc\n0::/\n" if name == "v1" else "0::/docker/abc\n"
        counts = base / "fs" / "docker" / "abc" / ("cpuacct.usage" if name == "v1" else "cpu.stat")
        counts.write_text("")
        (base / "proc").mkdir()
        proc = made_proc(base / "proc", groups, [f"30 20 0:26 {root} {base / 'fs'} rw shared:4 - {kind} x {options}"])
        assert cpu_file(7, proc) == counts


def test_a_process_in_no_cgroup_of_its_own_is_not_measured_by_the_machines_numbers(tmp_path: Path) -> None:
    (tmp_path / "cpuacct.usage").write_text("1")
    proc = made_proc(tmp_path, "5:cpuacct:/\n0::/\n", [f"30 20 0:26 / {tmp_path} rw - cgroup x rw,cpuacct"])
    assert cpu_file(7, proc) is None
    assert cpu_file(8, proc) is None


def test_network_is_every_interface_both_ways_without_loopback() -> None:
    lines = ["Inter-|   Receive | Transmit", " face |bytes packets |bytes packets"]
    lines += [f"{name}: {into} 1 0 0 0 0 0 0 {out} 1 0 0 0 0 0 0" for name, into, out in
              (("    lo", 900, 900), ("  eth0", 10, 200), ("eth1", 3000, 40000))]  # fmt: skip
    assert interface_bytes("\n".join(lines)) == 43210
