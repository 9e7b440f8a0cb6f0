/* SPDX-License-Identifier: Apache-2.0 */
/* postgres_value.c: convert values and results. Values are sent in binary: eight bytes, big-endian,
 * for a BIGINT, and the bytes themselves for TEXT and BYTEA. Results may also have the types of
 * common expressions (int4 of a literal, numeric of sum(bigint), bool); other types are refused. */
#include <endian.h>
#include <libpq-fe.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "sql/postgres.h"

/* From catalog/pg_type.dat, the same in every PostgreSQL; libpq's public headers do not name
 * them. */
enum {
    TYPE_BOOL = 16,
    TYPE_BYTEA = 17,
    TYPE_NAME = 19,
    TYPE_INT8 = 20,
    TYPE_INT2 = 21,
    TYPE_INT4 = 23,
    TYPE_TEXT = 25,
    TYPE_OID = 26,
    TYPE_UNKNOWN = 705,
    TYPE_BPCHAR = 1042,
    TYPE_VARCHAR = 1043,
    TYPE_NUMERIC = 1700,
    TYPE_VOID = 2278,
};

Oid postgres_type_of(enum sql_kind kind)
{
    switch (kind) {
    case SQL_INT:
        return TYPE_INT8;
    case SQL_TEXT:
        return TYPE_TEXT;
    case SQL_BLOB:
        return TYPE_BYTEA;
    case SQL_NULL:
        break;
    }
    return 0;
}

/* ---- out ------------------------------------------------------------------------------------- */

void postgres_values_free(struct postgres_values *values)
{
    base_free(values->at);
    base_free(values->sizes);
    base_free(values->formats);
    base_free(values->numbers);
    base_free(values->types);
    *values = (struct postgres_values){ 0 };
}

static int values_grow(struct postgres_values *values, uint32_t count)
{
    uint32_t capacity = count < 16 ? 16 : count;

    if (count <= values->capacity)
        return 0;
    postgres_values_free(values);
    values->at = base_alloc(capacity * sizeof(*values->at));
    values->sizes = base_alloc(capacity * sizeof(*values->sizes));
    values->formats = base_alloc(capacity * sizeof(*values->formats));
    values->numbers = base_alloc(capacity * sizeof(*values->numbers));
    values->types = base_alloc(capacity * sizeof(*values->types));
    if (values->at == NULL || values->sizes == NULL || values->formats == NULL ||
        values->numbers == NULL || values->types == NULL) {
        postgres_values_free(values);
        return TR_ENOMEM;
    }
    values->capacity = capacity;
    return 0;
}

int postgres_values_fill(
    struct postgres_values *values, const struct sql_unit *unit, const struct sql_step *step)
{
    int rc;

    rc = values_grow(values, step->value_count);
    if (rc != 0)
        return rc;
    for (uint32_t i = 0; i < step->value_count; i++) {
        const struct sql_value *value = &unit->values[step->value_first + i];

        values->formats[i] = 1;
        values->types[i] = postgres_type_of(value->kind);
        values->at[i] = NULL;
        values->sizes[i] = 0;
        if (value->kind == SQL_INT) {
            values->numbers[i] = htobe64((uint64_t)value->number);
            values->at[i] = (const char *)&values->numbers[i];
            values->sizes[i] = sizeof(values->numbers[i]);
        } else if (value->kind != SQL_NULL) {
            tr_assert(value->size <= INT_MAX);
            values->at[i] = value->size == 0 ? "" : unit->bytes.bytes + value->offset;
            values->sizes[i] = (int)value->size;
        }
    }
    return 0;
}

/* ---- in -------------------------------------------------------------------------------------- */

static uint64_t big_endian(const char *bytes, size_t size)
{
    uint64_t value = 0;

    for (size_t i = 0; i < size; i++)
        value = value << 8 | (unsigned char)bytes[i];
    return value;
}

static int64_t signed_of(uint64_t value, size_t size)
{
    unsigned shift = (unsigned)(64 - size * 8);

    return (int64_t)(value << shift) >> shift;
}

/* Convert a numeric: the count of base-10000 digits, the weight of the first, sign, scale, digits;
 * 16 bits each. False for a fraction or a number that does not fit. */
static bool numeric_to_int(const char *bytes, size_t size, int64_t *ret_value)
{
    enum { HEAD = 8, NEGATIVE = 0x4000, BASE = 10000 };
    size_t count;
    int64_t weight;
    uint64_t sign;
    int64_t value = 0;

    if (size < HEAD)
        return false;
    count = big_endian(bytes, 2);
    weight = signed_of(big_endian(bytes + 2, 2), 2);
    sign = big_endian(bytes + 4, 2);
    if (size != HEAD + count * 2 || (sign != 0 && sign != NEGATIVE))
        return false;
    /* The server sends no trailing zeros, so digits after the point mean a fraction; more than five
     * groups do not fit 64 bits. */
    if ((int64_t)count > weight + 1 || weight > 4) {
        *ret_value = 0;
        return count == 0;
    }
    for (int64_t i = 0; i <= weight; i++) {
        int64_t digit =
            (size_t)i < count ? (int64_t)big_endian(bytes + HEAD + (size_t)i * 2, 2) : 0;

        /* Accumulate a negative number: INT64_MIN has no positive counterpart. */
        if (__builtin_mul_overflow(value, (int64_t)BASE, &value) ||
            __builtin_sub_overflow(value, digit, &value))
            return false;
    }
    if (sign == NEGATIVE) {
        *ret_value = value;
        return true;
    }
    return !__builtin_sub_overflow((int64_t)0, value, ret_value);
}

/* Store one cell; false for an unsupported type or a number that does not fit. */
static bool store_cell(struct sql_unit *unit, Oid type, const char *bytes, size_t size)
{
    int64_t number;

    switch (type) {
    case TYPE_INT8:
    case TYPE_INT4:
    case TYPE_INT2:
        if (size != 8 && size != 4 && size != 2)
            return false;
        sql_unit_cell_int(unit, signed_of(big_endian(bytes, size), size));
        return true;
    case TYPE_BOOL:
    case TYPE_OID:
        if (size != 1 && size != 4)
            return false;
        sql_unit_cell_int(unit, (int64_t)big_endian(bytes, size));
        return true;
    case TYPE_NUMERIC:
        if (!numeric_to_int(bytes, size, &number))
            return false;
        sql_unit_cell_int(unit, number);
        return true;
    case TYPE_TEXT:
    case TYPE_VARCHAR:
    case TYPE_BPCHAR:
    case TYPE_NAME:
    case TYPE_UNKNOWN:
        sql_unit_cell_bytes(unit, SQL_TEXT, bytes, size);
        return true;
    case TYPE_BYTEA:
        sql_unit_cell_bytes(unit, SQL_BLOB, bytes, size);
        return true;
    default:
        return false;
    }
}

static int store_rows(
    struct sql_unit *unit, uint32_t step, const PGresult *result, char *why, size_t why_size)
{
    int columns = PQnfields(result);
    int rows = PQntuples(result);

    sql_unit_start_rows(unit, step, (uint32_t)columns);
    for (int row = 0; row < rows && unit->failed == 0; row++) {
        for (int column = 0; column < columns; column++) {
            Oid type = PQftype(result, column);

            /* TYPE_VOID: a function without a result, such as pg_advisory_xact_lock. */
            if (PQgetisnull(result, row, column) || type == TYPE_VOID) {
                sql_unit_cell_null(unit);
                continue;
            }
            if (!store_cell(unit, type, PQgetvalue(result, row, column),
                    (size_t)PQgetlength(result, row, column))) {
                snprintf(why, why_size,
                    "column %d (%s) has type %u or a value that is not BIGINT, TEXT or BYTEA: "
                    "cast it",
                    column + 1, PQfname(result, column), type);
                return SQL_EFAILED;
            }
        }
        sql_unit_end_row(unit, step);
    }
    return 0;
}

int postgres_store(
    struct sql_unit *unit, uint32_t step, const PGresult *result, char *why, size_t why_size)
{
    struct span changed = span_of(PQcmdTuples((PGresult *)(uintptr_t)result));
    uint64_t count = 0;
    int rc = 0;

    if (changed.size > 0)
        span_u64(changed, &count);
    unit->steps[step].changed = (int64_t)count;
    if (PQresultStatus(result) == PGRES_TUPLES_OK && PQnfields(result) > 0)
        rc = store_rows(unit, step, result, why, why_size);
    if (rc == 0 && unit->failed != 0) {
        snprintf(why, why_size, "out of memory for the rows");
        rc = unit->failed;
    }
    return rc;
}
