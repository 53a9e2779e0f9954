"""Reads a compressed Linux kernel.

    vmlinux.py release VMLINUZ          its release, such as 6.1.0-54-cloud-amd64
    vmlinux.py unpack VMLINUZ VMLINUX   the kernel itself, with its types
"""

import struct
import subprocess
import sys

# the first bytes of compressed data, and the command that unpacks it and ignores what follows
KINDS = {
    b"\xfd7zXZ\0": ["xz", "-dcq", "--single-stream"],
    b"\x28\xb5\x2f\xfd": ["zstd", "-dcq"],
    b"\x02\x21\x4c\x18": ["lz4", "-dcq"],
    b"\x1f\x8b\x08": ["gzip", "-dcq"],
}


def release(image):
    # the boot protocol: the offset of the version text, from the end of the first sector
    at = struct.unpack_from("<H", image, 0x20E)[0] + 0x200
    return image[at:].split(b"\0")[0].split(b" ")[0].decode()


def unpacked(image):
    for magic, command in KINDS.items():
        at = image.find(magic)
        while at >= 0:
            done = subprocess.run(command, input=image[at:], capture_output=True, check=False)
            if done.stdout.startswith(b"\x7fELF"):
                return done.stdout
            at = image.find(magic, at + 1)
    sys.exit("there is no kernel in it")


def main():
    with open(sys.argv[2], "rb") as file:
        image = file.read()
    if sys.argv[1] == "release":
        print(release(image))
    else:
        with open(sys.argv[3], "wb") as file:
            file.write(unpacked(image))


main()
