// SPDX-License-Identifier: Apache-2.0
#include <simdjson.h>
#include <string>

#include "peers.h"

static simdjson::dom::parser parser;

int peer_simdjson_parse(const char *text, size_t size)
{
    simdjson::dom::element root;

    return parser.parse(text, size, false).get(root) != simdjson::SUCCESS;
}

const char *peer_simdjson_name(void)
{
    static std::string name = simdjson::get_active_implementation()->name();

    return name.c_str();
}
