/* SPDX-License-Identifier: Apache-2.0 */
#include "shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

void shared_path(const char *name, char *path, size_t size)
{
    const char *place = getenv("TROUPE_SHARED");
    char up[64] = "";
    size_t used = 0;

    if (place != NULL) {
        (void)snprintf(path, size, "%s/%s", place, name);
        if (access(path, R_OK) == 0)
            return;
    }
    for (int i = 0; place == NULL && i < 6; i++) { /* from the repository or below it */
        used += (size_t)snprintf(up + used, sizeof up - used, "../");
        (void)snprintf(path, size, "%sshared/%s", up, name);
        if (access(path, R_OK) == 0)
            return;
    }
    SKIP("there is no %s in ../shared or TROUPE_SHARED", name);
}

char *shared_read(const char *name, size_t *ret_size)
{
    char path[512];
    FILE *file;
    char *text;
    long size;

    shared_path(name, path, sizeof path);
    file = fopen(path, "rb");
    CHECK(file != NULL);
    CHECK(fseek(file, 0, SEEK_END) == 0);
    size = ftell(file);
    CHECK(size >= 0);
    rewind(file);
    text = calloc(1, (size_t)size + 64);
    CHECK(text != NULL);
    CHECK(fread(text, 1, (size_t)size, file) == (size_t)size);
    fclose(file);
    *ret_size = (size_t)size;
    return text;
}
