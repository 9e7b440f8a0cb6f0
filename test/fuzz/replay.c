/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c: runs a fuzz target over files and folders of files instead of under libFuzzer, so that
 * stored inputs are tried in every build. Link it with one target:  replay-json corpus/json */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

_Noreturn static void fail(const char *path)
{
    (void)fprintf(stderr, "%s: %s\n", path, strerror(errno));
    exit(1);
}

static void run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data;
    long size;

    if (file == NULL)
        fail(path);
    if (fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET) != 0)
        fail(path);
    data = malloc((size_t)size + (size == 0)); /* exactly: a sanitizer sees a byte too many */
    if (data == NULL || fread(data, 1, (size_t)size, file) != (size_t)size)
        fail(path);
    (void)fclose(file);
    (void)printf("%s\n", path); /* the last one printed is the one that failed */
    (void)fflush(stdout);
    (void)LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
}

/* Returns how many inputs were run. */
static int run_path(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    char name[4096];
    int count = 0;

    if (folder == NULL) {
        run_file(path);
        return 1;
    }
    while ((entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        count += run_path(name);
    }
    (void)closedir(folder);
    return count;
}

int main(int argc, char **argv)
{
    int count = 0;

    for (int i = 1; i < argc; i++)
        count += run_path(argv[i]);
    if (count == 0) {
        (void)fprintf(stderr, "usage: %s FILE-OR-FOLDER...\n", argv[0]);
        return 1;
    }
    (void)printf("%d inputs\n", count);
    return 0;
}
