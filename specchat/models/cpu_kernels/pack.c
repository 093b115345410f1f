/* Weights from the rows of a file into the blocks that product.h describes, without a copy between.
 *
 * What the file holds in 4 bits stays as it is; everything else is rounded here, group by group. */

#include "refuse.h"
#include "stored.h"

/* Write one group of one row: its numbers into lane `lane` of a group of a block, its scale and minimum behind.
 * False where a weight is no finite number, which rounding would hide. */
typedef bool Pack(const Stored *from, const uint8_t *row, int group, int lane, uint8_t *to);

enum { FOUR = LANES * GROUP / 2, EIGHT = LANES * GROUP };

static inline void put_numbers(uint8_t *to, const void *numbers, int bytes, int lane) {
    for (int i = 0; i < bytes; i += 4) memcpy(to + i * LANES + lane * 4, (const uint8_t *)numbers + i, 4);
}

/* Whether it is a finite number. */
static inline bool put_half(uint8_t *to, int lane, uint16_t bits) {
    memcpy(to + lane * 2, &bits, 2);
    return (bits & 0x7c00) != 0x7c00;
}

/* Blocks of 32 share out their halves of bytes as product.h does. */
static bool own_q4_0(const Stored *from, const uint8_t *row, int group, int lane, uint8_t *to) {
    (void)from;
    const uint8_t *block = row + group * 18;
    put_numbers(to, block + 2, GROUP / 2, lane);
    return put_half(to + FOUR, lane, half_bits(block));
}

static bool own_q4_1(const Stored *from, const uint8_t *row, int group, int lane, uint8_t *to) {
    (void)from;
    const uint8_t *block = row + group * 20;
    put_numbers(to, block + 4, GROUP / 2, lane);
    return put_half(to + FOUR, lane, half_bits(block)) & put_half(to + FOUR + 2 * LANES, lane, half_bits(block + 2));
}

/* Blocks of 256 hold two groups in the low and high halves of the same bytes. */
static bool own_q4_k(const Stored *from, const uint8_t *row, int group, int lane, uint8_t *to) {
    (void)from;
    const uint8_t *block = row + group / 8 * 144, *numbers = block + 16 + group % 8 / 2 * 32;
    vn first = bytes16(numbers), second = bytes16(numbers + 16);
    vn both = group % 2 ? first >> 4 | (second & 0xf0) : (first & 15) | second << 4;
    put_numbers(to, &both, GROUP / 2, lane);
    float scale, minimum;
    factors_k(block, group % 8, &scale, &minimum);
    return put_half(to + FOUR, lane, as_half(scale)) & put_half(to + FOUR + 2 * LANES, lane, as_half(minimum));
}

static inline void unpack(const Stored *from, const uint8_t *row, int group, float *to) {
    int left = from->length - group * GROUP;
    UNPACK[from->kind](row, group, left < GROUP ? left : GROUP, to);
}

static inline float not_zero(float scale) { return scale > 1e-12f ? scale : 1e-12f; }

/* LANES numbers, less `minimum` and in steps of `scale`: the nearest whole numbers, of two the even one, counted from
 * `middle`. */
static inline vn nearest(const float *x, float minimum, float scale, float least, float most, int middle) {
    vi whole[PARTS];
    for (int k = 0; k < PARTS; k++) {
        vf value = larger((load(x + k * REGISTER) - minimum) / scale, all(least));
        value = either(value < most, value, all(most));
        whole[k] = (vi)(value + 12582912.0f) - (vi)all(12582912.0f) + middle;
    }
    return narrow(whole);
}

static inline bool all_finite(const float *x) {
    vi strange = (vi){0};
    for (int i = 0; i < GROUP; i += REGISTER) strange |= (vi)size_of(load(x + i)) >= 0x7f800000;
    return max_of((vf)(strange & (vi)all(1.0f))) == 0.0f;
}

/* From the least to the largest of the group in 15 steps. (Of zeros of both signs any may be the least.) */
static bool round_to_four(const Stored *from, const uint8_t *row, int group, int lane, uint8_t *to) {
    float x[GROUP] __attribute__((aligned(64))) = {0};
    unpack(from, row, group, x);
    vf most = load(x), least = -load(x);
    for (int i = REGISTER; i < GROUP; i += REGISTER) {
        most = larger(most, load(x + i));
        least = larger(least, -load(x + i));
    }
    uint16_t low = as_half(-max_of(least));
    float minimum = half_value(low);
    uint16_t step = as_half((max_of(most) - minimum) / 15.0f);
    float scale = not_zero(half_value(step));
    vn both = nearest(x, minimum, scale, 0, 15, 0) | nearest(x + LANES, minimum, scale, 0, 15, 0) << 4;
    put_numbers(to, &both, GROUP / 2, lane);
    return put_half(to + FOUR, lane, step) & put_half(to + FOUR + 2 * LANES, lane, low) & all_finite(x);
}

/* −127 to 127 times a scale. */
static bool round_to_eight(const Stored *from, const uint8_t *row, int group, int lane, uint8_t *to) {
    float x[GROUP] __attribute__((aligned(64))) = {0};
    unpack(from, row, group, x);
    vf most = size_of(load(x));
    for (int i = REGISTER; i < GROUP; i += REGISTER) most = larger(most, size_of(load(x + i)));
    uint16_t step = as_half(max_of(most) / 127.0f);
    float scale = not_zero(half_value(step));
    vn numbers[2] = {nearest(x, 0, scale, -127, 127, 128), nearest(x + LANES, 0, scale, -127, 127, 128)};
    put_numbers(to, numbers, GROUP, lane);
    return put_half(to + EIGHT, lane, step) & all_finite(x);
}

static Pack *how(int kind, int bits) {
    if (bits == 8) return round_to_eight;
    return kind == Q4_0 ? own_q4_0 : kind == Q4_1 ? own_q4_1 : kind == Q4_K ? own_q4_k : round_to_four;
}

/* Whether rows of this kind can be packed. */
int packs(int kind) { return kind >= 0 && kind < KINDS_END && UNPACK[kind] != NULL; }

/* Bytes of a group of a block of outputs. In 4 bits all kinds but Q4_0 have minima. */
static int64_t step_of(int kind, int bits) {
    return LANES * GROUP / 8 * bits + (bits == 4 && kind != Q4_0 ? 2 : 1) * LANES * 2;
}

/* Bytes of a row of so many numbers, or −1 where this kind has no such row. */
static int64_t bytes_of(int kind, int64_t length) {
    const StoredBlock *block = &BLOCK[kind];
    return length % block->numbers ? -1 : length / block->numbers * block->bytes;
}

static int stored_check(const Stored *from) {
    if (!packs(from->kind)) return refuse("rows of kind %d cannot be packed", from->kind);
    if (from->rows < 1 || from->length < 1) return refuse("%d rows of %d numbers", from->rows, from->length);
    if (from->row_bytes != bytes_of(from->kind, from->length))
        return refuse("%lld bytes are not a row of %d numbers of kind %d", (long long)from->row_bytes, from->length, from->kind);
    for (int i = 0; i < from->rows; i++) {
        int row = from->order ? from->order[i] : i;
        if (row < 0 || row >= from->there) return refuse("row %d of %d", row, from->there);
    }
    return DONE;
}

static int room_check(const Stored *from, int bits, int64_t room) {
    if (bits != 4 && bits != 8) return refuse("%d bits, not 4 or 8", bits);
    int64_t blocks = (from->rows + LANES - 1) / LANES, groups = ((int64_t)from->length + GROUP - 1) / GROUP;
    if (room < blocks * groups * step_of(from->kind, bits)) return refuse("%lld bytes are too few", (long long)room);
    return DONE;
}

/* Write rows as blocks of a product with so many bits into `room` bytes; an Outcome, NOT_NUMBERS where weights are no
 * finite numbers. Lanes past the last row stay as they are. */
int pack(const Stored *from, int bits, uint8_t *to, int64_t room) {
    if (stored_check(from) || room_check(from, bits, room)) return REFUSED;
    Pack *one = how(from->kind, bits);
    int groups = (from->length + GROUP - 1) / GROUP;
    int64_t step = step_of(from->kind, bits);
    bool finite = true;
    for (int first = 0; first < from->rows; first += LANES) {
        int lanes = from->rows - first < LANES ? from->rows - first : LANES;
        const uint8_t *rows[LANES];
        for (int lane = 0; lane < lanes; lane++)
            rows[lane] = from->data + (from->order ? from->order[first + lane] : first + lane) * from->row_bytes;
        for (int group = 0; group < groups; group++, to += step)
            for (int lane = 0; lane < lanes; lane++) finite &= one(from, rows[lane], group, lane, to);
    }
    return finite ? DONE : NOT_NUMBERS;
}

/* Whether all weights of these rows are finite numbers: DONE, else NOT_NUMBERS or REFUSED. */
int finite_rows(const Stored *from) {
    if (stored_check(from)) return REFUSED;
    bool finite = true;
    for (int i = 0; i < from->rows; i++) {
        const uint8_t *row = from->data + (from->order ? from->order[i] : i) * from->row_bytes;
        for (int group = 0; group * GROUP < from->length; group++) {
            float x[GROUP] __attribute__((aligned(64))) = {0};
            unpack(from, row, group, x);
            finite &= all_finite(x);
        }
    }
    return finite ? DONE : NOT_NUMBERS;
}

int unpack_rows(const Stored *from, float *to) {
    if (stored_check(from)) return REFUSED;
    for (int i = 0; i < from->rows; i++) {
        const uint8_t *row = from->data + (from->order ? from->order[i] : i) * from->row_bytes;
        for (int at = 0; at < from->length; at += GROUP) {
            float x[GROUP] __attribute__((aligned(64)));
            int left = from->length - at, count = left < GROUP ? left : GROUP;
            unpack(from, row, at / GROUP, x);
            memcpy(to, x, (size_t)count * sizeof(float));
            to += count;
        }
    }
    return DONE;
}
