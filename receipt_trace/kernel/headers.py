"""The header tree that bcc compiles against where there are no kernel headers.

bcc's own helpers want eight headers; of these only names for integers and a few
constants matter, because the programs find kernel objects by the offsets that BTF gives.
"""

from pathlib import Path
from typing import Final

_TYPES: Final = """
#pragma once
typedef signed char __s8, s8;
typedef unsigned char __u8, u8;
typedef short __s16, s16;
typedef unsigned short __u16, u16, __be16, __le16, __sum16;
typedef int __s32, s32, pid_t;
typedef unsigned int __u32, u32, __be32, __le32, __wsum;
typedef long long __s64, s64;
typedef unsigned long long __u64, u64, __be64, __le64;
typedef unsigned long size_t, uintptr_t;
typedef _Bool bool;
#define __aligned_u64 __u64 __attribute__((aligned(8)))
#define NULL ((void *)0)
"""

_HEADERS: Final = {
    "include/linux/kconfig.h": "#define CONFIG_BPF_SYSCALL 1\n",
    "include/linux/types.h": _TYPES,
    # Chooses between spellings of one helper only; 5.8 is the oldest kernel we run on.
    "include/linux/version.h": "#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))\n"
    "#define LINUX_VERSION_CODE KERNEL_VERSION(5, 8, 0)\n",
    "include/linux/log2.h": "",
    "include/linux/bpf_common.h": "",
    "include/asm/page.h": "#define PAGE_SIZE 4096\n",
    "include/uapi/linux/bpf.h": "#include <bcc/bpf.h>\n",
    "include/uapi/linux/if_packet.h": "",
}


def write_headers(folder: Path) -> None:
    """Write the tree below a folder, for ``BCC_KERNEL_SOURCE``."""
    for name, content in _HEADERS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
