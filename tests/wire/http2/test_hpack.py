"""HPACK against the hpack library, against the examples of the standard, and with malformed blocks."""

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.wire.http2 import huffman
from inferometer.wire.http2.fields import HeaderReader, validate_response
from inferometer.wire.http2.hpack import NO_TABLE, STATIC, HpackDecoder, HpackError, encode

LIMIT = 1 << 20
NAMES = st.sampled_from(
    [b":status", b"content-type", b"grpc-status", b"server-timing", b"x-a", b"date"]
) | st.from_regex(rb"[a-z0-9\-]{1,12}", fullmatch=True)
VALUES = st.binary(max_size=40) | st.sampled_from([b"", b"0", b"200", b"application/grpc", b"queue;dur=0.12"])
LISTS = st.lists(st.tuples(NAMES, VALUES), max_size=8)


def hexes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\n", " "))


# --- RFC 7541, appendix C --------------------------------------------------------------------------------------------

REQUESTS = [
    [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")],
    [
        *[(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")],
        (b"cache-control", b"no-cache"),
    ],
    [
        *[
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":path", b"/index.html"),
            (b":authority", b"www.example.com"),
        ],
        (b"custom-key", b"custom-value"),
    ],
]
COOKIE = b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
LOCATION = (b"location", b"https://www.example.com")
FIRST, SECOND = (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"), (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT")
RESPONSES = [
    [(b":status", b"302"), (b"cache-control", b"private"), FIRST, LOCATION],
    [(b":status", b"307"), (b"cache-control", b"private"), FIRST, LOCATION],
    [
        *[(b":status", b"200"), (b"cache-control", b"private"), SECOND, LOCATION, (b"content-encoding", b"gzip")],
        (b"set-cookie", COOKIE),
    ],
]
EXAMPLES = {
    "C.3, requests": (
        4096,
        REQUESTS,
        [57, 110, 164],
        [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ],
    ),
    "C.4, requests with Huffman": (
        4096,
        REQUESTS,
        [57, 110, 164],
        [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ],
    ),
    "C.5, responses": (
        256,
        RESPONSES,
        [222, 222, 215],
        [
            """4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120
               474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d""",
            "4803 3330 37c1 c0bf",
            """88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738
               666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33
               3630 303b 2076 6572 7369 6f6e 3d31""",
        ],
    ),
    "C.6, responses with Huffman": (
        256,
        RESPONSES,
        [222, 222, 215],
        [
            """4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718
               63c7 8f0b 97c8 e9ae 82ae 43d3""",
            "4883 640e ffc1 c0bf",
            """88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7
               b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07""",
        ],
    ),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_standard_decode_and_leave_the_documented_tables(example: str) -> None:
    size, lists, sizes, blocks = EXAMPLES[example]
    decoder = HpackDecoder(size)
    for fields, left, block in zip(lists, sizes, blocks, strict=True):
        assert decoder.decode(hexes(block), LIMIT) == tuple(fields)
        assert decoder.table_size == left
    assert decoder.table[0] == (lists[-1][-1])


@pytest.mark.parametrize(
    ("block", "fields", "table"),
    [
        ("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572", (b"custom-key", b"custom-header"), 1),
        ("040c 2f73 616d 706c 652f 7061 7468", (b":path", b"/sample/path"), 0),
        ("1008 7061 7373 776f 7264 0673 6563 7265 74", (b"password", b"secret"), 0),
        ("82", (b":method", b"GET"), 0),
    ],
)
def test_each_representation_of_appendix_c2(block: str, fields: tuple[bytes, bytes], table: int) -> None:
    decoder = HpackDecoder()
    assert decoder.decode(hexes(block), LIMIT) == (fields,)
    assert len(decoder.table) == table


# --- against the hpack library ---------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(LISTS, st.booleans(), st.none() | st.sampled_from([0, 40, 100, 300, 4096])), max_size=6),
    st.booleans(),
)
def test_blocks_encoded_by_the_library_decode_here(
    blocks: list[tuple[list[tuple[bytes, bytes]], bool, int | None]], sensitive: bool
) -> None:
    encoder, decoder = hpack.Encoder(), HpackDecoder()
    for fields, huffman_too, size in blocks:
        if size is not None:
            encoder.header_table_size = size
        made = encoder.encode([(name, value, sensitive) for name, value in fields], huffman=huffman_too)
        assert decoder.decode(made, LIMIT) == tuple(fields)
        assert decoder.table == tuple(encoder.header_table.dynamic_entries)


@given(LISTS)
def test_cached_blocks_give_the_same_headers(fields: list[tuple[bytes, bytes]]) -> None:
    encoder, reader, decoder = hpack.Encoder(), HeaderReader(LIMIT, "the server", validate_response), HpackDecoder()
    for _ in range(4):
        for some in (fields, fields[:2], fields[2:]):
            block = encoder.encode(some)
            decoded = reader.known.get(block) or reader.read(block)
            headers = decoder.decode(block, LIMIT)
            assert decoded.headers == headers == tuple(some)


def test_known_block_is_looked_up_until_the_table_changes() -> None:
    reader = HeaderReader(LIMIT, "the server", validate_response)
    reader.read(b"\x40\x01a\x01b")
    assert not reader.known
    assert reader.read(b"\xbe").headers == ((b"a", b"b"),)
    assert set(reader.known) == {b"\xbe"}
    reader.read(b"\x40\x01a\x01c")
    assert not reader.known
    assert reader.read(b"\xbe").headers == ((b"a", b"c"),)
    for _ in range(2):
        assert reader.read(b"\x20\x88").headers == ((b":status", b"200"),)
        assert not reader.known


def test_cache_of_blocks_is_bounded() -> None:
    reader = HeaderReader(LIMIT, "the server", validate_response)
    for number in range(2000):
        reader.read(encode([(b"x", b"%d" % number)]))
    reader.read(encode([(b"x", b"y" * 5000)]))
    assert len(reader.known) <= 256
    assert max(map(len, reader.known)) < 1024


ENCODABLE = st.lists(
    st.tuples(
        st.from_regex(rb"[a-z0-9\-]{1,200}", fullmatch=True) | st.sampled_from([name for name, _ in STATIC]),
        st.binary(max_size=300).map(lambda raw: raw.translate(None, b"\0\r\n").strip(b" \t")),
    ),
    max_size=8,
).map(lambda fields: sorted(fields, key=lambda field: field[0][:1] != b":"))


@given(ENCODABLE)
def test_encoded_blocks_decode_in_the_library_without_its_table(fields: list[tuple[bytes, bytes]]) -> None:
    decoder = hpack.Decoder()
    for _ in range(2):
        assert [tuple(field) for field in decoder.decode(encode(fields), raw=True)] == fields
    assert not decoder.header_table.dynamic_entries
    assert HpackDecoder().decode(encode(fields), LIMIT) == tuple(fields)


def test_encoding_uses_static_entries_and_blocks_can_be_joined() -> None:
    assert encode([(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/")]) == b"\x83\x86\x84"
    assert encode([(b"content-type", b"x")]) == b"\x0f\x10\x01x"
    assert encode([(b":status", b"201")]) == b"\x08\x03201"
    assert encode(REQUESTS[1]) == encode(REQUESTS[0]) + encode([(b"cache-control", b"no-cache")])


def test_secret_is_marked_as_never_indexed() -> None:
    block = encode([(b"authorization", b"Bearer x"), (b"accept", b"*/*")])
    fields = hpack.Decoder().decode(block, raw=True)
    assert [field.indexable for field in fields] == [False, True]


@pytest.mark.parametrize(
    "fields",
    [
        [(b"", b"x")],
        [(b"Upper", b"x")],
        [(b"a b", b"x")],
        [(b"a:b", b"x")],
        [(b"a\x80", b"x")],
        [(b"a", b"x\r\nb: c")],
        [(b"a", b"\0")],
        [(b"a", b" x")],
        [(b"a", b"x"), (b":path", b"/")],
    ],
)
def test_invalid_headers_are_not_encoded(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(ValueError, match="header"):
        encode(fields)


# --- Huffman ---------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=300))
def test_huffman_strings_of_the_library_decode_here(text: bytes) -> None:
    coder = hpack.huffman.HuffmanEncoder(
        hpack.huffman_constants.REQUEST_CODES, hpack.huffman_constants.REQUEST_CODES_LENGTH
    )
    assert huffman.decode(coder.encode(text)) == text


def test_every_symbol_has_the_same_code_as_in_the_library() -> None:
    coder = hpack.huffman.HuffmanEncoder(
        hpack.huffman_constants.REQUEST_CODES, hpack.huffman_constants.REQUEST_CODES_LENGTH
    )
    for symbol in range(256):
        assert huffman.decode(coder.encode(bytes([symbol]) * 9)) == bytes([symbol]) * 9


@given(st.binary(max_size=20))
def test_any_bytes_decode_as_huffman_exactly_if_the_library_decodes_them(raw: bytes) -> None:
    try:
        there: bytes | None = hpack.huffman_table.decode_huffman(raw)
    except hpack.HPACKDecodingError:
        there = None
    try:
        here: bytes | None = huffman.decode(raw)
    except ValueError:
        here = None
    assert here == there


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xff\xff\xff",  # the end of string
        b"\xff",  # eight bits of padding
        b"\x07\xff",  # '0' and eleven
        b"\x00\x00\x00\x00\x00\x00",  # padded with zeros: '0' in five bits leaves three zeros over
        b"\xfe",  # a symbol of ten bits, cut
    ],
)
def test_huffman_string_with_a_wrong_end_is_an_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match="Huffman"):
        huffman.decode(raw)


# --- the dynamic table -----------------------------------------------------------------------------------------------


def test_entry_larger_than_the_table_empties_it_without_an_error() -> None:
    decoder = HpackDecoder(64)
    decoder.decode(b"\x40\x01a\x01b", LIMIT)
    assert decoder.table_size == 34
    assert decoder.decode(b"\x40\x01c\x28" + b"d" * 40, LIMIT) == ((b"c", b"d" * 40),)
    assert decoder.table == ()
    assert decoder.table_size == 0


def test_size_update_evicts_and_a_second_one_enlarges_the_table_again() -> None:
    decoder = HpackDecoder()
    decoder.decode(b"\x40\x01a\x01b\x40\x01c\x01d", LIMIT)
    assert decoder.decode(b"\x3f\x0b\xbe", LIMIT) == ((b"c", b"d"),)  # to 42: one entry fits
    assert decoder.table == ((b"c", b"d"),)
    assert decoder.decode(NO_TABLE + b"\x3f\xe1\x1f\x40\x01e\x01f", LIMIT) == ((b"e", b"f"),)
    assert decoder.table == ((b"e", b"f"),)


def test_new_entry_may_use_the_name_of_the_entry_it_evicts() -> None:
    decoder = HpackDecoder(40)
    decoder.decode(b"\x40\x01a\x01b", LIMIT)
    assert decoder.decode(b"\x7e\x02cc", LIMIT) == ((b"a", b"cc"),)
    assert decoder.table == ((b"a", b"cc"),)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"\x80", "entry 0"),
        (b"\xbe", "entry 62"),
        (b"\xff\xff\x7f", "entry"),
        (b"\x7f\x00\x01a", "entry 63"),
        (b"\x0f\x40\x01a", "entry 79"),
        (b"\xff", "middle of a number"),
        (b"\xff\x80", "middle of a number"),
        (b"\xff\x80\x80\x80\x80\x80\x01", "35 bits"),
        (b"\x40", "middle of a field"),
        (b"\x40\x01a", "middle of a field"),
        (b"\x40\x05abc", "string of 5 bytes, but only 3"),
        (b"\x40\x01a\x7f\xff\xff\xff\xff\x07", "string of"),
        (b"\x40\x81\xff\x01b", "Huffman"),
        (b"\x88\x20", "follows a field"),
        (b"\x20\x20\x20", "third"),
        (b"\x3f\xe2\x1f", "4097"),
    ],
)
def test_error_for_a_malformed_block_says_what_is_wrong(block: bytes, expected: str) -> None:
    with pytest.raises(HpackError, match=expected):
        HpackDecoder().decode(block, LIMIT)


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_decode_as_in_the_library_or_are_an_error_in_both(blocks: list[bytes]) -> None:
    here, there = HpackDecoder(), hpack.Decoder(max_header_list_size=LIMIT)
    for block in blocks:
        try:
            decoded = here.decode(block, LIMIT)
        except HpackError:
            decoded = None
        if decoded is not None:
            assert [tuple(field) for field in there.decode(block, raw=True)] == list(decoded)
            assert here.table == tuple(there.header_table.dynamic_entries)
        else:
            return


def test_list_beyond_the_limit_is_none_and_the_table_is_still_updated() -> None:
    decoder = HpackDecoder()
    block = b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000  # one entry of 4033
    assert decoder.decode(block, 4033) == ((b"a", b"x" * 4000),)
    assert decoder.decode(b"\xbe" * 50_000 + b"\x88", 65536) is None
    assert decoder.decode(b"\x40\x01b\x01c" + b"\xbe" * 3000, 65536) is None
    assert decoder.table[0] == (b"b", b"c")


# --- validation of fields --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "expected"),
    [
        ([(b":status", b"200"), (b"a", b"b")], 200, ""),
        ([(b"grpc-status", b"0")], 0, ""),
        ([(b":status", b"200"), (b"a", b" spaces ")], 200, ""),
        ([], 0, ""),
        ([(b"a", b"b"), (b":status", b"200")], 0, ":status"),
        ([(b":status", b"200"), (b":status", b"200")], 0, ":status"),
        ([(b":status", b"2x0")], 0, ":status"),
        ([(b":status", b"2000")], 0, ":status"),
        ([(b":path", b"/")], 0, "not allowed in a response"),
        ([(b"Upper", b"x")], 0, "the name"),
        ([(b"", b"x")], 0, "the name"),
        ([(b"connection", b"close")], 0, "HTTP/1.1"),
        ([(b"a", b"b\nc: d")], 0, "line break"),
    ],
)
def test_malformed_fields_are_detected(fields: list[tuple[bytes, bytes]], status: int, expected: str) -> None:
    block = validate_response(tuple(fields))
    assert block.status == status
    assert expected in block.fault
    assert bool(block.fault) == bool(expected)
