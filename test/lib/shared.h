/* SPDX-License-Identifier: Apache-2.0 */
/* shared.h: test data that is not part of the repository: vectors of others, in ../shared beside it
 * or where TROUPE_SHARED says. A test that needs it is skipped, with the reason, where it is not.
 */
#ifndef TEST_LIB_SHARED_H
#define TEST_LIB_SHARED_H

#include <stddef.h>

/* Path of "vectors/mls/welcome.json", say. Skips the case if it is not there. */
void shared_path(const char *name, char *path, size_t size);
/* The whole file, with 64 zero bytes after it; the caller frees it. */
char *shared_read(const char *name, size_t *ret_size);

#endif
