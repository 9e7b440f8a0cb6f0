#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The second implementation of Matrix canonical JSON.

Reads records from stdin: size and bytes of a JSON text, size and bytes of its canonical form, sizes as
32 bits, little endian; 0xffffffff instead of a form says that it has none. Ends with status 1 at the
first record it disagrees with.
"""
import json
import struct
import sys

NONE = 0xFFFFFFFF
LIMIT = 2**53


class NoForm(Exception):
    pass


def integer(value):
    if not -LIMIT < value < LIMIT:
        raise NoForm
    return value


def real(digits):
    mantissa, _, exponent = digits.lower().partition("e")
    if "." in mantissa or not exponent or exponent.startswith("-"):
        raise NoForm
    if int(mantissa) == 0:
        return 0
    if int(exponent) > 20:
        raise NoForm
    return integer(int(mantissa) * 10**int(exponent))


def members(pairs):
    if len({key for key, _ in pairs}) != len(pairs):
        raise NoForm
    return dict(pairs)


def canonical(text):
    try:
        value = json.loads(text.decode("utf-8"), parse_int=lambda digits: integer(int(digits)),
                           parse_float=real, object_pairs_hook=members)
    except NoForm:
        return None
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def read_sized(stream):
    head = stream.read(4)
    if not head:
        return NONE, None
    size = struct.unpack("<I", head)[0]
    return size, None if size == NONE else stream.read(size)


def main():
    count = forms = 0
    while True:
        size, text = read_sized(sys.stdin.buffer)
        if size == NONE:
            break
        _, ours = read_sized(sys.stdin.buffer)
        theirs = canonical(text)
        if ours != theirs:
            print(f"text  {text!r}\nours  {ours!r}\ntheirs {theirs!r}")
            return 1
        count += 1
        forms += ours is not None
    # If nearly everything, or nearly nothing, had a form, little was compared.
    return 0 if count < 1000 or count // 20 < forms < count - count // 20 else 1


if __name__ == "__main__":
    sys.exit(main())
