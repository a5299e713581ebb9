r"""HPACK's Huffman code for strings (RFC 7541, appendix B). Only decoding: the strings that we send are not compressed.

The code is canonical, so the symbols ordered by the length of their codes define it completely. Decoding works byte by
byte: the current node of the tree and the next byte give the decoded symbols and the next node. Each such transition is
computed when it first occurs.
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
    30: b"\n\r\x16",  # followed by the end-of-string symbol, which must not occur
}
_END = 256


def _tree() -> list[list[int]]:
    """Build the nodes as [successor for bit 0, successor for bit 1]: another node, or ~symbol. The root is node 0."""
    nodes = [[0, 0]]
    code = length = 0
    for next_length, symbols in _BY_LENGTH.items():
        code <<= next_length - length
        length = next_length
        for symbol in (*symbols, _END) if length == 30 else symbols:
            node = 0
            for bit in range(length - 1, 0, -1):
                branch = code >> bit & 1
                if not nodes[node][branch]:
                    nodes[node][branch] = len(nodes)
                    nodes.append([0, 0])
                node = nodes[node][branch]
            nodes[node][code & 1] = ~symbol
            code += 1
    return nodes


_NODES = _tree()


def _final_states() -> set[int]:
    """The states in which a string may end: at most seven 1 bits of padding after its last symbol."""
    states, node = {0}, 0
    for _ in range(7):
        node = _NODES[node][1]
        states.add(node << 8)
    return states


_FINAL_STATES = _final_states()


class _Transitions(dict[int, tuple[bytes, int]]):
    """(node << 8 | byte) -> (symbols, next node << 8)."""

    def __missing__(self, state: int) -> tuple[bytes, int]:
        node, symbols = state >> 8, bytearray()
        for bit in range(7, -1, -1):
            node = _NODES[node][state >> bit & 1]
            if node < 0:
                if ~node == _END:
                    raise ValueError("a Huffman string contains the end-of-string symbol")
                symbols.append(~node)
                node = 0
        transition = self[state] = (bytes(symbols), node << 8)
        return transition


_TRANSITIONS = _Transitions()


def decode(data: bytes) -> bytes:
    """Decode a string; raises ValueError with a message that says what is wrong with it."""
    state = 0
    decoded = []
    transitions = _TRANSITIONS
    for byte in data:
        symbols, state = transitions[state | byte]
        decoded.append(symbols)
    if state not in _FINAL_STATES:
        raise ValueError("a Huffman string ends in the middle of a symbol")
    return b"".join(decoded)
