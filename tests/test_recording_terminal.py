"""What a recording shows on a terminal that the recorded program uses, too."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# The alternate screen.
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"

# As editors do; each step when it is told to. Standard output says what was done.
FULL_SCREEN = f"""
echo ready
read -r _ && stty -icanon -echo <&2 && printf '{ENTER}' >&2 && echo entered
read -r _ && printf '~ a file{LEAVE}' >&2 && stty icanon echo <&2 && echo left
read -r _
"""

# Runs `flatwalk record`. Progress is shown at once, and only when the test says so.
IN_TURNS = """
import os, sys
from flatwalk import cli
from flatwalk.terminal import output

turns, shown = int(sys.argv.pop(1)), int(sys.argv.pop(1))

class InTurns(output.Progress):
    def __call__(self, done, total=None):
        os.read(turns, 1)
        super().__call__(done, total)
        os.write(shown, b".")

output.Progress, output.PATIENCE = InTurns, 0.0
cli.main()
"""


def test_the_bar_leaves_full_screen_programs_alone(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    (their_turn, turn), (shown, their_shown) = os.pipe(), os.pipe()
    process = subprocess.Popen(
        [
            *[sys.executable, "-I", "-c", IN_TURNS, str(their_turn), str(their_shown)],
            *["record", "-o", "out.fwt", "--", "sh", "-c", FULL_SCREEN],
        ],
        cwd=tmp_path,
        env=os.environ | {"TERM": "xterm-256color"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=follower,
        pass_fds=(their_turn, their_shown),
        bufsize=0,
    )
    for end in (follower, their_turn, their_shown):
        os.close(end)
    assert process.stdin is not None
    assert process.stdout is not None

    def show(times: int) -> None:
        for _ in range(times):
            os.write(turn, b".")
            assert os.read(shown, 1) == b"."

    assert process.stdout.readline() == b"ready\n"
    show(2)
    for done in (b"entered\n", b"left\n"):
        process.stdin.write(b"\n")
        assert process.stdout.readline() == done
        show(3)
    os.close(turn)
    process.stdin.write(b"\n")
    seen = b""
    try:
        while chunk := os.read(leader, 4096):
            seen += chunk
    except OSError:  # the other end is closed: all was read
        pass
    for end in (leader, shown):
        os.close(end)
    with process:
        assert process.wait() == 0, seen.decode()
    before, _, rest = seen.decode().partition(ENTER)
    between, _, after = rest.partition(LEAVE)
    assert "Recording" in before
    assert between == "~ a file"
    assert "Recording" in after
    assert after.rindex("\x1b[?25h") > after.rindex("\x1b[?25l"), "the cursor is shown in the end"
