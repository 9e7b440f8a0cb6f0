/* SPDX-License-Identifier: Apache-2.0 */
#include <troupe/error.h>

const char *tr_error_name(int error)
{
    switch (error) {
    case 0:
        return "TR_OK";
#define ERROR_NAME(name, number, text)                                                             \
    case name:                                                                                     \
        return #name;
        TR_ERRORS(ERROR_NAME)
#undef ERROR_NAME
    default:
        return "TR_EUNKNOWN";
    }
}

const char *tr_error_text(int error)
{
    switch (error) {
    case 0:
        return "success";
#define ERROR_TEXT(name, number, text)                                                             \
    case name:                                                                                     \
        return text;
        TR_ERRORS(ERROR_TEXT)
#undef ERROR_TEXT
    default:
        return "not an error code of this library";
    }
}
