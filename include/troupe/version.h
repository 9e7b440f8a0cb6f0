/* SPDX-License-Identifier: Apache-2.0 */
/* version.h: the version of the headers a program was compiled with, and of the library it runs
 * with. */
#ifndef TROUPE_VERSION_H
#define TROUPE_VERSION_H

#include <troupe/error.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TR_VERSION_MAJOR 0
#define TR_VERSION_MINOR 1
#define TR_VERSION_PATCH 0
#define TR_VERSION "0.1.0"
/* Grows with every version: compare it with #if. */
#define TR_VERSION_NUMBER (TR_VERSION_MAJOR * 1000000 + TR_VERSION_MINOR * 1000 + TR_VERSION_PATCH)

/* How structs grow. Option structs that begin with struct_size get new fields at their end. A
 * program that uses a field newer than version 0.1 sets the size of its own header:
 *
 *     struct tr_system_options options = { TR_SIZED(tr_system_options), .workers = 4 };
 *
 * The library then reads no further than the program's struct, and refuses with TR_EUNSUPPORTED a
 * field it does not know. With struct_size 0 it reads the fields of version 0.1, so { 0 } stays
 * right. Structs that stand in tables or inside other structs have reserved fields instead, which
 * must be zero. */
#define TR_SIZED(type) .struct_size = sizeof(struct type)

/* Return the version of the library, such as "0.1.0". It may differ from TR_VERSION where a program
 * is linked dynamically. The text is static. */
TR_API const char *tr_version(void);

#ifdef __cplusplus
}
#endif

#endif
