/* SPDX-License-Identifier: Apache-2.0 */
/* libolm.h: shared by the files of this folder: objects of libolm in our memory, and its errors. */
#ifndef MATRIX_CRYPTO_LIBOLM_LIBOLM_H
#define MATRIX_CRYPTO_LIBOLM_LIBOLM_H

#include <olm/olm.h>

#include "matrix/crypto/mx_private.h"

/* The functions that libolm has for each of its types. */
struct mx__libolm_type {
    size_t (*size)(void);
    void *(*init)(void *memory);
    size_t (*clear)(void *object);
    size_t (*pickle_length)(const void *object);
    size_t (*pickle)(void *object, const void *key, size_t key_size, void *text, size_t size);
    size_t (*unpickle)(void *object, const void *key, size_t key_size, void *text, size_t size);
};

/* Define the table `libolm_<noun>` of a type. The functions between convert the pointers. */
#define MX__LIBOLM_TYPE(noun, type)                                                                \
    static void *noun##_init(void *memory)                                                         \
    {                                                                                              \
        return olm_##noun(memory);                                                                 \
    }                                                                                              \
    static size_t noun##_clear(void *object)                                                       \
    {                                                                                              \
        return olm_clear_##noun((type *)object);                                                   \
    }                                                                                              \
    static size_t noun##_pickle_length(const void *object)                                         \
    {                                                                                              \
        return olm_pickle_##noun##_length((const type *)object);                                   \
    }                                                                                              \
    static size_t noun##_pickle(                                                                   \
        void *object, const void *key, size_t key_size, void *text, size_t size)                   \
    {                                                                                              \
        return olm_pickle_##noun((type *)object, key, key_size, text, size);                       \
    }                                                                                              \
    static size_t noun##_unpickle(                                                                 \
        void *object, const void *key, size_t key_size, void *text, size_t size)                   \
    {                                                                                              \
        return olm_unpickle_##noun((type *)object, key, key_size, text, size);                     \
    }                                                                                              \
    static const struct mx__libolm_type libolm_##noun = {                                          \
        olm_##noun##_size,                                                                         \
        noun##_init,                                                                               \
        noun##_clear,                                                                              \
        noun##_pickle_length,                                                                      \
        noun##_pickle,                                                                             \
        noun##_unpickle,                                                                           \
    };

/* Create an empty object; NULL when out of memory. */
void *mx__libolm_create(const struct mx__libolm_type *type);
void mx__libolm_destroy(const struct mx__libolm_type *type, void *object); /* wipes; NULL is fine */
/* Pack an object as libolm's own pickle. Reading creates it, and sets MX_EFORMAT or TR_ENOMEM. */
void mx__libolm_pack(struct mx__pack *pack, const struct mx__libolm_type *type, void **object);

/* Return the MX_E* code of a failure. */
int mx__libolm_error(enum OlmErrorCode code);

#endif
