"""How much of a question leaves: secrets that programs print, masked by their shape. Pure.

Command lines are masked as questions are. Shapes are those that issuers document and that
secret scanners look for; a secret without a shape (a plain word) is only found beside its name
(``password: …``, ``--token …``). Every pattern is linear: the text is hostile.
"""

import enum
import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from receipt_trace.receipt import Receipt

MASK: Final = "[redacted]"


class Prompt(enum.StrEnum):
    """What an exporter gets of a question and of command lines."""

    FULL = "full"
    """All of it."""
    REDACTED = "redacted"
    """What looks like a secret is masked."""
    OFF = "off"
    """No question at all; command lines are masked."""


_NAME: Final = (
    r"(?:pass(?:word|wd|phrase|code)?|pwd|pin|otp|secret|token|credentials?|"
    r"(?:api|access|auth|account|encryption|private|secret|signing|shared)[_ -]?key|auth)"
)
_TOKENS: Final = re.compile(
    r"""
    \b(?:
      gh[oprsu]_[A-Za-z0-9]{20,} | github_pat_\w{20,}          # GitHub
    | gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-[\w-]{16,}         # GitLab
    | (?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}                      # AWS
    | AIza[\w-]{30,} | ya29\.[\w-]{20,} | GOCSPX-[\w-]{20,}    # Google
    | xox[a-z]-[\w-]{10,} | xapp-[\w-]{10,}                    # Slack
    | sk-[\w-]{16,} | sk_(?:live|test)_\w{10,} | rk_(?:live|test)_\w{10,} | whsec_\w{16,}
    | npm_[A-Za-z0-9]{30,} | pypi-[\w-]{16,} | rubygems_\w{20,} | dckr_pat_[\w-]{20,}
    | hf_[A-Za-z0-9]{20,} | do[opr]_v1_\w{20,} | shp(?:at|ca|pa|ss)_\w{20,} | lin_api_\w{20,}
    | hv[sb]\.[\w-]{20,} | SG\.[\w-]{16,}\.[\w-]{16,} | AGE-SECRET-KEY-1[A-Z0-9]{20,}
    | eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?                     # JSON Web Token
    )
    """,
    re.VERBOSE | re.ASCII,
)
_BLOCK: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [^-\n]{0,60}-----|\Z)",
    re.DOTALL,
)
_BESIDE: Final = tuple(  # each has the secret in its last group
    re.compile(pattern, re.IGNORECASE | re.ASCII)
    for pattern in (
        # user:SECRET@ in an address
        r"(\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@]{0,200}:)(?!\[redacted)([^\s/@]{1,500})(?=@)",
        # the services of chats take whoever knows the path
        r"(\bhooks\.slack\.com/services/)(\S{1,200})",
        r"(\b(?:proxy-)?authorization\s?[:=]\s?[\"']?(?:basic|bearer|token|digest)?\s?)(?!\[redacted)([^\s\"']{4,500})",
        r"(\b(?:bearer|basic)\s)([\w.~+/=-]{12,})",
        # name=SECRET, "name": "SECRET", name is SECRET; a name may be the end of a longer one
        rf"({_NAME}[\"']?(?:\s?[:=]|\s+is\s?:?)\s{{0,3}}[\"']?)(?!\[redacted)([^\s\"']{{1,500}})",
        # name [SECRET]: a default
        rf"({_NAME}\s?\[)([^\s\]]{{4,200}})(?=\])",
        # --name SECRET, -u user:SECRET
        rf"(--?[a-z0-9-]{{0,40}}{_NAME}\s+[\"']?)([^\s\"'-][^\s\"']{{0,500}})",
        r"((?<!\S)(?:-u|--user|--proxy-user)[\s=]\s?[^\s:]{1,100}:)(\S{1,200})",
    )
)
_LONG: Final = re.compile(r"[A-Za-z0-9+/_-]{32,}={0,2}")
_FLAG: Final = re.compile(rf"--?[a-z0-9_-]{{0,40}}{_NAME}", re.IGNORECASE | re.ASCII)
_WRAPPED: Final = 60
"""From this length on a line may be the first part of one that the screen was too narrow for. Then
the word that begins the next line is masked with a secret that ends this one."""
_TORN: Final = re.compile(r"[\w.+/=-]{2}", re.ASCII)


def mask(text: str) -> str:
    """The text with everything that looks like a secret masked."""
    whole = _unwrap(text)
    masked = _mask(whole)
    return text if masked == whole else masked


def mask_words(words: Sequence[str]) -> tuple[str, ...]:
    """A command line, masked; an option that is named like a secret hides the word after it."""
    masked = []
    hide = login = False
    for word in words:
        if hide and not word.startswith("-"):
            masked.append(MASK)
        elif login and ":" in word:
            masked.append(word.partition(":")[0] + ":" + MASK)
        else:
            masked.append(mask(word))
        hide = _FLAG.fullmatch(word) is not None
        login = word in {"-u", "--user", "--proxy-user"}
    return tuple(masked)


@lru_cache(maxsize=4)  # one receipt goes to several exporters
def redact(receipt: Receipt, prompt: Prompt) -> Receipt:
    """The receipt as an exporter may have it; ``prompt.redacted`` says whether anything is missing."""
    if prompt is Prompt.FULL:
        return receipt
    text = "" if prompt is Prompt.OFF else mask(receipt.prompt.text)
    tree, program = receipt.tree, receipt.program
    safe = replace(
        receipt,
        prompt=replace(receipt.prompt, text=text),
        tree=replace(
            tree,
            command=mask_words(tree.command),
            label=None if tree.label is None else mask(tree.label),
            cwd=None if tree.cwd is None else mask(tree.cwd),
        ),
        program=replace(program, argv=mask_words(program.argv)),
    )
    return safe if safe == receipt else replace(safe, prompt=replace(safe.prompt, redacted=True))


def _mask(text: str) -> str:
    text = _BLOCK.sub(MASK, text)
    text = _TOKENS.sub(MASK, text)
    for pattern in _BESIDE:
        text = pattern.sub(lambda match: match[1] + MASK, text)
    return _LONG.sub(lambda match: MASK if _is_random(match[0]) else match[0], text)


def _is_random(word: str) -> bool:
    """Whether a long word is no name: capitals, small letters and digits in no order.

    Hexadecimal digests are none: a question about a commit or an image has to stay readable.
    """
    if not (re.search("[A-Z]", word) and re.search("[a-z]", word) and re.search("[0-9]", word)):
        return False
    counts = Counter(word).values()
    bits = -sum(n / len(word) * math.log2(n / len(word)) for n in counts)
    # Bits a character: of 40 at random some 4.8, of a path, which has its own signs, up to 4.5.
    return bits >= (4.3 if word.isalnum() else 4.6)


def _unwrap(text: str) -> str:
    """The text with the lines joined that a narrow screen may have broken within a word."""
    lines = text.split("\n")
    joined = lines[:1]
    for before, line in itertools.pairwise(lines):
        if len(before) >= _WRAPPED and _TORN.fullmatch(before[-1:] + line[:1]):
            joined[-1] += line
        else:
            joined.append(line)
    return "\n".join(joined)
