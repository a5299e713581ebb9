"""The table of APIs agrees with what is keyed by it."""

from typing import get_args, get_type_hints

import pytest

from inferometer.apis import APIS, DATA_TYPES, DEFAULT_APIS
from inferometer.config import from_mapping
from inferometer.config.data import Data
from inferometer.config.schema import Server
from inferometer.wire.calls import CODECS


def test_every_api_has_a_codec() -> None:
    assert CODECS.keys() == APIS.keys()


def test_the_schema_accepts_exactly_the_apis_of_the_table() -> None:
    assert set(get_args(get_type_hints(Server)["api"])) == {"auto", *APIS}


def test_the_data_types_are_those_of_the_schema() -> None:
    tags = {kind.__struct_config__.tag for kind in get_args(Data)}
    assert {name for names in DATA_TYPES.values() for name in names} == tags


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_a_config_with_nothing_but_the_api_gets_its_defaults(api: object) -> None:
    row = APIS[api.name]  # type: ignore[attr-defined]
    method = {"method": "pkg.Service/Method"} if row.has_method else {}
    data = {"data": {"messages": [{}]}} if row.has_method else {}
    config = from_mapping({"server": {"url": f"{row.schemes[0]}://x", "api": row.name} | method} | data)
    assert config.data.__struct_config__.tag == row.data_types[0]
    assert config.server.stream is row.is_streamed


@pytest.mark.parametrize("scheme", DEFAULT_APIS)
def test_the_default_api_of_a_scheme_supports_it(scheme: str) -> None:
    assert scheme in APIS[DEFAULT_APIS[scheme]].schemes  # type: ignore[index]
