/* SPDX-License-Identifier: Apache-2.0 */
#include <cjson/cJSON.h>

#include "peers.h"

int peer_cjson_parse(const char *text, size_t size)
{
    cJSON *root = cJSON_ParseWithLength(text, size);

    cJSON_Delete(root);
    return root == NULL;
}
