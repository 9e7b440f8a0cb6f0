// SPDX-License-Identifier: Apache-2.0
#include "simdjson_verdict.h"

#include <simdjson.h>

static simdjson::dom::parser parser;

enum simdjson_verdict simdjson_verdict(const char *text, size_t size)
{
    simdjson::dom::element root;
    simdjson::error_code error = parser.parse(text, size, true).get(root);

    if (error == simdjson::SUCCESS)
        return SIMDJSON_ACCEPTS;
    if (error == simdjson::NUMBER_ERROR)
        return SIMDJSON_REFUSES_NUMBER;
    return SIMDJSON_REFUSES;
}
