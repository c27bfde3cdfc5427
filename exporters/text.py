"""Receipts as lines for people: short, and harmless on a terminal."""

from receipt_trace.output import write_all
from receipt_trace.receipt import Receipt

_WORD = {
    "line": "asks for a line",
    "secret": "asks for a secret",
    "key": "waits for a key",
    "screen": "shows a full screen",
    "stream": "reads its input",
    "dead": "waits for what nobody can give",
}
HOW = {
    "answered": "was answered",
    "eof": "its input was closed",
    "expired": "gave up by its own time-out",
    "interrupted": "was ended by receipt-trace",
    "killed": "was killed",
    "exited": "has exited",
    "lost": "is no longer watched",
}
_QUESTION_LENGTH = 160


def printable(text: str) -> str:
    """Text that cannot act on a terminal: everything unprintable as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def describe(receipt: Receipt) -> str:
    """One readable line without its end."""
    who = f"{printable(receipt.program.name)}[{receipt.program.pid}]"
    where = _where(receipt)
    if receipt.event == "eof" and receipt.resolution is not None:
        status = receipt.resolution.exit_status
        line = f"{who}{where} asked “{_question(receipt.prompt.text)}” and its input was at its end"
        return line if status is None else f"{line}, exit status {status}"
    if receipt.resolution is not None:
        resolution = receipt.resolution
        line = f"{who}{where} {HOW[resolution.how]} after {resolution.waited_s:.1f} s"
        if resolution.exit_status is not None:
            line += f", exit status {resolution.exit_status}"
        return line
    line = f"{who}{where} {_WORD[receipt.input.kind]} on {printable(receipt.input.target)}"
    if receipt.program.relays:
        line += f" through {', '.join(map(printable, receipt.program.relays))}"
    question = _question(receipt.prompt.text)
    return f"{line}: “{question}”" if question else line


def _where(receipt: Receipt) -> str:
    if receipt.agent is not None:
        return f" of {printable(receipt.agent.name)}"
    return f" of {printable(receipt.tree.label)}" if receipt.tree.label else ""


def _question(text: str) -> str:
    """The last line that says something, which is nearly always the question."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" ~|+-─│┌┐└┘")]
    question = printable(" ".join(lines[-1].split())) if lines else ""
    if len(question) > _QUESTION_LENGTH:
        question = "…" + question[1 - _QUESTION_LENGTH :]
    return question


class TextExporter:
    """Writes readable lines to a descriptor; ``newline`` is CR LF on a raw terminal."""

    def __init__(self, fd: int, prefix: str = "receipt-trace: ", newline: str = "\n") -> None:
        self._fd, self._prefix, self._newline = fd, prefix, newline

    def export(self, receipt: Receipt) -> None:
        """Write one line."""
        self.say(describe(receipt))

    def say(self, text: str) -> None:
        """Write any line of ours."""
        write_all(self._fd, f"{self._prefix}{text}{self._newline}".encode("utf-8", "replace"))

    def reopen(self) -> None:
        """Nothing: the descriptor is the caller's."""

    def close(self) -> None:
        """Nothing: the descriptor is the caller's."""
