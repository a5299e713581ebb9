r"""HPACK's string code (RFC 7541, appendix B), decoding only: what we send is plain.

The code is canonical, so the symbols in order of their codes' lengths say it all. Decoding goes a byte at a time: a step
(where in the tree, which byte) gives symbols and a new place; steps are worked out when they first occur.
"""

_BY_LENGTH = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: bytes.fromhex("80 82 83 a2 b8 c2 e0 e2"),
    21: bytes.fromhex("99 a1 a7 ac b0 b1 b3 d1 d8 d9 e3 e5 e6"),
    22: bytes.fromhex("81 84 85 86 88 92 9a 9c a0 a3 a4 a9 aa ad b2 b5 b9 ba bb bd be c4 c6 e4 e8 e9"),
    23: bytes.fromhex("01 87 89 8a 8b 8c 8d 8f 93 95 96 97 98 9b 9d 9e a5 a6 a8 ae af b4 b6 b7 bc bf c5 e7 ef"),
    24: bytes.fromhex("09 8e 90 91 94 9f ab ce d7 e1 ec ed"),
    25: bytes.fromhex("c7 cf ea eb"),
    26: bytes.fromhex("c0 c1 c8 c9 ca cd d2 d5 da db ee f0 f2 f3 ff"),
    27: bytes.fromhex("cb cc d3 d4 d6 dd de df f1 f4 f5 f6 f7 f8 fa fb fc fd fe"),
    28: bytes.fromhex("02 03 04 05 06 07 08 0b 0c 0e 0f 10 11 12 13 14 15 17 18 19 1a 1b 1c 1d 1e 1f 7f dc f9"),
    30: b"\n\r\x16",  # and, last of all, the end of string, which must not occur
}
_END = 256


def _tree() -> list[list[int]]:
    """Nodes as [where 0 leads, where 1 leads]: another node, or ~symbol. The root is node 0."""
    nodes = [[0, 0]]
    code = length = 0
    for longer, symbols in _BY_LENGTH.items():
        code <<= longer - length
        length = longer
        for symbol in (*symbols, _END) if length == 30 else symbols:
            node = 0
            for bit in range(length - 1, 0, -1):
                way = code >> bit & 1
                if not nodes[node][way]:
                    nodes[node][way] = len(nodes)
                    nodes.append([0, 0])
                node = nodes[node][way]
            nodes[node][code & 1] = ~symbol
            code += 1
    return nodes


_NODES = _tree()


def _places_of_padding() -> set[int]:
    """Where a string may end: fewer than eight ones after its last symbol."""
    places, node = {0}, 0
    for _ in range(7):
        node = _NODES[node][1]
        places.add(node << 8)
    return places


_MAY_END = _places_of_padding()


class _Steps(dict[int, tuple[bytes, int]]):
    """(node << 8 | byte) -> (symbols, next node << 8)."""

    def __missing__(self, place: int) -> tuple[bytes, int]:
        node, symbols = place >> 8, bytearray()
        for bit in range(7, -1, -1):
            node = _NODES[node][place >> bit & 1]
            if node < 0:
                if ~node == _END:
                    raise ValueError("a Huffman string contains the end-of-string symbol")
                symbols.append(~node)
                node = 0
        step = self[place] = (bytes(symbols), node << 8)
        return step


_STEPS = _Steps()


def decode(data: bytes) -> bytes:
    """Raises ValueError, in words."""
    place = 0
    found = []
    steps = _STEPS
    for byte in data:
        symbols, place = steps[place | byte]
        found.append(symbols)
    if place not in _MAY_END:
        raise ValueError("a Huffman string ends in the middle of a symbol")
    return b"".join(found)
