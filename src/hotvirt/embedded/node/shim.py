"""One tiny process per Pod: starts its containers, keeps their logs, records how they ended.

It outlives `hotvirt up`, so that guests go on without it and an adopted guest still has an exit code. It is
started as `python -I -S shim.py FOLDER`, imports only what is cheap (it stays resident once per Pod) and
knows nothing of Kubernetes: FOLDER/start.json says what to run.

    FOLDER/started             made once, O_EXCL: containers are never started twice
    FOLDER/lock                flock, held as long as the shim lives
    FOLDER/shim.json           pid, start time, host boot id of the shim
    FOLDER/containers/NAME.json  the same of the container, and how it ended
    FOLDER/logs/NAME/0.log     what it printed, in CRI's format; 0.log.1 is the older half

Every record is written to a temporary name and renamed. A container waits for its record before it runs: a
shim that dies at any moment leaves either a record or no process.
"""

# pathlib would cost every Pod memory for as long as it runs.
# ruff: noqa: PTH103, PTH105, PTH118, PTH123
import fcntl
import json
import os
import select
import signal
import sys
import time
from types import FrameType

LINE_MAX = 16 * 1024
READ_SIZE = 64 * 1024
# A prompt ("login: ") has no newline: it is logged as a part of a line once nothing followed it for this
# long.
QUIET_MS = 200
START_ERROR_EXIT = 128


def now() -> str:
    nanoseconds = time.time_ns()
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{fraction:09d}Z"


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def start_time(pid: int) -> int:
    """In clock ticks since boot: with the pid and the boot id it names a process for good."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def write_record(path: str, record: dict[str, object]) -> None:
    """Best effort on a full disk: the container matters more than its record."""
    try:
        with open(path + ".new", "w") as file:
            json.dump(record, file)
        os.replace(path + ".new", path)
    except OSError as error:
        print(f"hotvirt shim: cannot write {path}: {error}", file=sys.stderr, flush=True)


class Log:
    """One container's log: two files of bounded size, whatever is printed."""

    def __init__(self, folder: str, max_bytes: int) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.path = os.path.join(folder, "0.log")
        self.max_bytes = max_bytes
        self.fd = -1
        self.size = 0

    def write(self, data: bytes) -> None:
        """Never fails: on a full disk the output is dropped, the container goes on."""
        try:
            if self.fd < 0:
                self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                self.size = os.fstat(self.fd).st_size
            if self.size and self.size + len(data) > self.max_bytes:
                os.replace(self.path, self.path + ".1")
                os.close(self.fd)
                self.fd = -1
                self.write(data)
                return
            self.size += os.write(self.fd, data)
        except OSError:
            return


class Stream:
    """stdout or stderr of a container, cut into CRI's lines."""

    def __init__(self, fd: int, name: bytes, log: Log) -> None:
        self.fd = fd
        self.name = name
        self.log = log
        self.rest = b""

    def feed(self, data: bytes) -> None:
        stamp = now().encode()
        data = self.rest + data
        records = []
        at = 0
        while True:
            end = data.find(b"\n", at, at + LINE_MAX + 1)
            if end >= 0:
                records.append(b"%s %s F %s\n" % (stamp, self.name, data[at:end]))
                at = end + 1
            elif len(data) - at > LINE_MAX:
                records.append(b"%s %s P %s\n" % (stamp, self.name, data[at : at + LINE_MAX]))
                at += LINE_MAX
            else:
                break
        self.rest = data[at:]
        if records:
            self.log.write(b"".join(records))

    def flush(self, last: bool = False) -> None:
        if self.rest:
            tag = b"F" if last else b"P"
            self.log.write(b"%s %s %s %s\n" % (now().encode(), self.name, tag, self.rest))
            self.rest = b""


class Container:
    """One process, its two pipes and its record."""

    def __init__(self, spec: dict[str, object], pod_folder: str, boot: str) -> None:
        self.spec = spec
        self.record_path = os.path.join(pod_folder, "containers", f"{spec['name']}.json")
        self.record: dict[str, object] = {"name": spec["name"], "bootId": boot}
        self.log = Log(os.path.join(pod_folder, "logs", str(spec["name"])), int(str(spec["logBytes"])))
        self.streams: list[Stream] = []
        self.pid = 0
        self.exit_code: int | None = None

    def start(self) -> None:
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        go_read, go_write = os.pipe()
        failed_read, failed_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(go_write)
            self.become(out_write, err_write, go_read, failed_write)
        for fd in (out_write, err_write, go_read, failed_write):
            os.close(fd)
        self.record |= {"pid": self.pid, "startTime": start_time(self.pid), "startedAt": now()}
        write_record(self.record_path, self.record)
        os.write(go_write, b"g")
        os.close(go_write)
        error = b""
        while part := os.read(failed_read, 4096):  # ends at exec, which closes the other end
            error += part
        os.close(failed_read)
        if error:
            self.record["error"] = error.decode("utf-8", "replace")
        self.streams = [Stream(out_read, b"stdout", self.log), Stream(err_read, b"stderr", self.log)]

    def become(self, out: int, err: int, go: int, failed: int) -> None:
        """In the child: join the cgroup, wait until the record is written, run the command."""
        try:
            os.setsid()
            for path in self.spec["cgroups"]:  # type: ignore[attr-defined]  # JSON made by the node
                with open(path, "w") as file:
                    file.write("0")
            if os.read(go, 1) != b"g":
                os._exit(START_ERROR_EXIT)
            null = os.open("/dev/null", os.O_RDONLY)
            for source, target in ((null, 0), (out, 1), (err, 2)):
                os.dup2(source, target)
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            # SIGPIPE stays ignored through exec: if this shim is killed, the container must not die of its
            # output.
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.chdir(str(self.spec["cwd"]))
            argv = self.spec["argv"]
            environment = self.spec["env"]
            os.execvpe(argv[0], argv, environment)  # type: ignore[index,arg-type]  # JSON made by the node
        except BaseException as error:
            os.write(failed, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(START_ERROR_EXIT)

    def ended(self, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        self.exit_code = 128 - code if code < 0 else code
        self.record |= {"exitCode": self.exit_code, "signal": -code if code < 0 else 0, "finishedAt": now()}

    def write_end(self) -> None:
        for stream in self.streams:
            stream.flush(last=True)
            os.close(stream.fd)
        self.streams = []
        write_record(self.record_path, self.record)


class Pump:
    """Waits for output and for the end of containers."""

    def __init__(self) -> None:
        self.poll = select.poll()
        self.streams: dict[int, Stream] = {}
        self.wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self.child_ended)
        self.poll.register(self.wake, select.POLLIN)

    @staticmethod
    def child_ended(_number: int, _frame: FrameType | None) -> None:
        """The wake-up descriptor is what matters."""

    def add(self, container: Container) -> None:
        for stream in container.streams:
            os.set_blocking(stream.fd, False)
            self.streams[stream.fd] = stream
            self.poll.register(stream.fd, select.POLLIN)

    def remove(self, container: Container) -> None:
        for stream in container.streams:
            self.drain(stream)
            self.forget(stream)

    def forget(self, stream: Stream) -> None:
        if self.streams.pop(stream.fd, None):
            self.poll.unregister(stream.fd)

    def drain(self, stream: Stream) -> None:
        """What is in the pipe now; a child that kept the pipe open is not waited for."""
        for _ in range(64):
            if not self.read(stream):
                return

    def read(self, stream: Stream) -> bool:
        try:
            data = os.read(stream.fd, READ_SIZE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            stream.feed(data)
            return True
        self.forget(stream)
        return False

    def run_once(self) -> None:
        waiting = any(stream.rest for stream in self.streams.values())
        ready = self.poll.poll(QUIET_MS if waiting else None)
        if not ready:
            for stream in self.streams.values():
                stream.flush()
        for fd, _ in ready:
            if fd == self.wake:
                os.read(self.wake, 512)
            elif fd in self.streams:
                self.read(self.streams[fd])


def kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def run(specs: list[dict[str, object]], folder: str, boot: str, pump: Pump) -> bool:
    """Run these containers side by side until all have ended; true if all ended well."""
    containers = [Container(spec, folder, boot) for spec in specs]
    running: dict[int, Container] = {}
    for container in containers:
        container.start()
        pump.add(container)
        running[container.pid] = container
    while running:
        reap(running, pump)
        if running:
            pump.run_once()
    return all(container.exit_code == 0 for container in containers)


def reap(running: dict[int, Container], pump: Pump) -> None:
    while running:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return
        if container := running.pop(ended.si_pid, None):
            # Still a zombie, so its number cannot be anybody else's: whatever it left in its group goes
            # with it.
            kill_group(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            container.ended(status)
            pump.remove(container)
            container.write_end()
        else:
            os.waitpid(ended.si_pid, 0)


def detach() -> None:
    """Leave the starter's session and let init be the parent: closing a terminal must not reach a guest."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.umask(0o077)


def say_ready() -> None:
    """The node waits for this, or for the end of file, on our standard output."""
    try:
        os.write(1, b"ok")
    except OSError:
        pass  # it was killed meanwhile; the next one finds our record
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 1)


def main(folder: str) -> int:
    with open(os.path.join(folder, "start.json")) as file:
        start = json.load(file)
    # uvloop lets descriptors through to its children: among them a copy of our standard output, whose end the
    # node waits for, and none of them is a guest's business.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    detach()
    os.chdir(folder)
    lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(os.open("started", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except (BlockingIOError, FileExistsError):
        return 0  # another shim has or had this Pod
    # Blocked rather than ignored: a signal to a container that is just being started waits for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for path in start["cgroups"]:
        with open(path, "w") as file:
            file.write("0")
    os.makedirs("containers", mode=0o700, exist_ok=True)
    boot = boot_id()
    write_record("shim.json", {"pid": os.getpid(), "startTime": start_time(os.getpid()), "bootId": boot})
    say_ready()
    pump = Pump()
    for spec in start["initContainers"]:
        if not run([spec], folder, boot, pump):
            return 0
    run(start["containers"], folder, boot, pump)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
