/* A few tokens through attentions, MLPs and the head of a model, in float32 on a CPU.

   Each weight is read once for all tokens of a pass; threads share the rows of a product, and the tokens and heads of
   attention. What becomes of a token does not depend on the others in its pass: a sum always adds the same numbers in
   the same order. Compiled on the machine that runs it; numbers are read as models/cpu/compiled.py writes them. */

#include <math.h>
#include <omp.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#else
#define LANES 8
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#endif
#define TILE 4            /* tokens whose sums are kept in registers */
#define NEAR_NUMBERS 7168 /* that stay in the nearest cache, of 32 KiB or more */
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES)));
#if !defined(__clang__) && __GNUC__ < 12
#define __builtin_shufflevector(x, y, ...) __builtin_shuffle(x, y, (bits){__VA_ARGS__})
#endif
typedef float unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct { const float *weight, *bias; double eps, offset; int64_t is_centred; } Norm; /* no weight: no norm */
typedef struct { const float *weight, *bias; int64_t rows; } Linear;                           /* no rows: none */

typedef struct {
    Norm before, after;
    Linear inner[3]; /* queries, keys, values; gate, up; or whatever of that is one product */
    Linear outer;
    double multiplier;
    int64_t size, is_attention;
    int64_t is_gated, activation; /* of an MLP: 0 silu, 1 gelu, 2 gelu_tanh */
    int64_t layer, num_heads, num_kv_heads, dim, turn, num_turned, is_interleaved, mask;
    double scaling, softcap; /* 0: none */
    Norm query_norm, key_norm;
    int64_t norms_all_heads; /* together; else each by itself */
} SubLayer;

typedef struct { const float *cos, *sin; int64_t num_positions; } Turn; /* [positions, half of what turns] */
typedef struct { const float *values; int64_t row_stride; } Mask;       /* [rows, width, end], added; none: all seen */

typedef struct {
    int64_t num_threads, num_tokens, width, end;
    const int64_t *rows, *slots, *positions; /* cache row of each row, slot and position of each token */
    float *cache;
    int64_t layer_stride, values_stride, row_stride, head_stride;
    const Turn *turns;
    const Mask *masks;
    float *inner, *other, *branch; /* [tokens, ...] of all threads */
    float *own;                    /* of each thread */
    int64_t own_size;
} Pass;

INLINE void share(int64_t count, int64_t grain, int64_t *first, int64_t *end) {
    int64_t id = omp_get_thread_num(), threads = omp_get_num_threads(), grains = (count + grain - 1) / grain;
    *first = grains * id / threads * grain;
    *end = grains * (id + 1) / threads * grain;
    if (*end > count) *end = count;
    if (*first > count) *first = count;
}

/* Where threads wait for each other: one that waits long lets others have its core, which OpenMP's barrier does not. */
typedef struct { int64_t num_waiting, num_met; } Meeting;
enum { PATIENCE = 4000 };

static void meet(Meeting *at) {
    int64_t threads = omp_get_num_threads(), met = __atomic_load_n(&at->num_met, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&at->num_waiting, 1, __ATOMIC_ACQ_REL) == threads) {
        at->num_waiting = 0;
        __atomic_store_n(&at->num_met, met + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int64_t tries = 0; __atomic_load_n(&at->num_met, __ATOMIC_ACQUIRE) == met; tries++)
        if (tries > PATIENCE) sched_yield();
}

/* ------------------------------------------------------------------------------------------------------ numbers */

/* Lane i becomes the sum of the lanes of sums[i]. */
INLINE vec sums_of(vec *sums) {
#pragma GCC unroll 4
    for (int count = LANES / 2; count; count /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
            sums[i] = __builtin_shufflevector(sums[2 * i], sums[2 * i + 1], EVEN) +
                      __builtin_shufflevector(sums[2 * i], sums[2 * i + 1], ODD);
    return sums[0];
}

INLINE float sum_of(vec sum) {
    vec sums[LANES] = {sum};
    return sums_of(sums)[0];
}

INLINE vec exp_of(vec x) {
    const vec none = {0};
    bits is_small = (bits)(x < none - 87.0f);
    x = (vec)(~is_small & (bits)x);
    bits is_large = (bits)(x > none + 88.0f);
    x = (vec)((~is_large & (bits)x) | (is_large & (bits)(none + 88.0f)));
    vec shifted = x * 1.44269504088896341f + 12582912.0f; /* 1.5 * 2^23: what is left of it is a whole number */
    vec whole = shifted - 12582912.0f;
    x = x - whole * 0.693359375f;
    x = x + whole * 2.12194440e-4f;
    vec y = x * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * x + 8.3334519073e-3f;
    y = y * x + 4.1665795894e-2f;
    y = y * x + 1.6666665459e-1f;
    y = y * x + 5.0000001201e-1f;
    y = y * (x * x) + x + 1.0f;
    return (vec)(~is_small & ((bits)y + ((bits)shifted << 23)));
}

INLINE vec sigmoid(vec x) { return 1.0f / (exp_of(-x) + 1.0f); }

INLINE vec activated(int64_t kind, vec x) {
    if (kind == 0) return x * sigmoid(x);
    if (kind == 2) return x * sigmoid((x + x * x * x * 0.044715f) * 1.5957691216057308f); /* 1 + tanh(u): 2 sigmoid(2u) */
    for (int lane = 0; lane < LANES; lane++) x[lane] *= 0.5f * (1.0f + erff(x[lane] * 0.70710678118654752f));
    return x;
}

INLINE vec load(const float *from, int64_t count) {
    if (count >= LANES) return *(const unaligned *)from;
    vec x = {0};
    memcpy(&x, from, 4 * count);
    return x;
}

INLINE void store(float *to, vec x, int64_t count) {
    if (count >= LANES) *(unaligned *)to = x;
    else memcpy(to, &x, 4 * count);
}

/* ----------------------------------------------------------------------------------------------------- products */

/* T tokens with R rows of a weight, at most LANES pairs. The first tokens fetch the rows that are next. */
INLINE void block(const int is_first, const int T, const int R, const float *w, int64_t K, const float *x, float *out,
                  int64_t stride) {
    vec sums[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) sums[i] = (vec){0};
    int64_t k = 0;
    for (; k + LANES <= K; k += LANES) {
        vec xs[TILE];
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) xs[t] = *(const unaligned *)(x + t * K + k);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            vec row = *(const unaligned *)(w + r * K + k);
            if (is_first) __builtin_prefetch(w + (r + R) * K + k);
#pragma GCC unroll 4
            for (int t = 0; t < T; t++) sums[t * R + r] += row * xs[t];
        }
    }
    if (k < K) {
        vec xs[TILE];
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) xs[t] = load(x + t * K + k, K - k);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            vec row = load(w + r * K + k, K - k);
#pragma GCC unroll 4
            for (int t = 0; t < T; t++) sums[t * R + r] += row * xs[t];
        }
    }
    vec totals = sums_of(sums);
#pragma GCC unroll 4
    for (int t = 0; t < T; t++)
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) out[t * stride + r] = totals[t * R + r];
}

#define OF(T, R)                                                                              \
    case T:                                                                                   \
        for (; n + R <= end; n += R) block(is_first, T, R, w + n * K, K, x, out + n, stride); \
        for (; n < end; n++) block(is_first, T, 1, w + n * K, K, x, out + n, stride);         \
        break;

INLINE void tile(const int is_first, int T, const float *w, int64_t K, const float *x, float *out, int64_t stride,
                 int64_t n, int64_t end) {
    switch (T) { OF(1, 2) OF(2, LANES / 4) OF(3, LANES / 4) OF(4, LANES / 4) }
}

/* Rows `first` to `end` of a weight, with each token: as many rows at a time as stay in the nearest cache. */
static void product(int64_t T, Linear by, int64_t K, const float *x, float *out, int64_t stride, int64_t first,
                    int64_t end) {
    const int64_t grain = LANES / TILE, room = NEAR_NUMBERS / K - TILE;
    int64_t step = T <= TILE ? end - first : room < grain ? grain : room / grain * grain;
    for (int64_t n = first; n < end; n += step) {
        int64_t stop = n + step < end ? n + step : end;
        tile(1, T < TILE ? T : TILE, by.weight, K, x, out, stride, n, stop);
        for (int64_t t = TILE; t < T; t += TILE)
            tile(0, T - t < TILE ? T - t : TILE, by.weight, K, x + t * K, out + t * stride, stride, n, stop);
    }
    for (int64_t t = 0; by.bias && t < T; t++)
        for (int64_t n = first; n < end; n++) out[t * stride + n] += by.bias[n];
}

/* -------------------------------------------------------------------------------------------------------- norms */

INLINE float length_of(const float *x, int64_t size) {
    vec sum = {0};
    for (int64_t i = 0; i < size; i += LANES) {
        vec part = load(x + i, size - i);
        sum += part * part;
    }
    return sum_of(sum);
}

static void normed(Norm norm, const float *x, int64_t size, float *out) {
    float mean = 0, scale;
    if (norm.is_centred) {
        vec sum = {0};
        for (int64_t i = 0; i < size; i += LANES) sum += load(x + i, size - i);
        mean = sum_of(sum) / size;
        for (int64_t i = 0; i < size; i++) out[i] = x[i] - mean;
        x = out;
    }
    scale = 1.0 / sqrt(length_of(x, size) / size + norm.eps);
    for (int64_t i = 0; i < size; i++) {
        out[i] = x[i] * scale * (norm.weight[i] + (float)norm.offset);
        if (norm.bias) out[i] += norm.bias[i];
    }
}

/* All tokens, by each thread for itself; those that are not normed are where they were. */
static const float *all_normed(Norm norm, const float *x, int64_t num_tokens, int64_t size, float *own) {
    if (!norm.weight) return x;
    for (int64_t t = 0; t < num_tokens; t++) normed(norm, x + t * size, size, own + t * size);
    return own;
}

/* ---------------------------------------------------------------------------------------------------- attention */

static void turn(const SubLayer *part, const Turn *by, int64_t position, float *head) {
    int64_t half = part->num_turned / 2;
    if (position >= by->num_positions) position = by->num_positions - 1; /* of padding */
    const float *cos = by->cos + position * half, *sin = by->sin + position * half;
    int64_t step = part->is_interleaved ? 2 : 1, distance = part->is_interleaved ? 1 : half;
    for (int64_t i = 0; i < half; i++) {
        float low = head[i * step], high = head[i * step + distance];
        head[i * step] = low * cos[i] - high * sin[i];
        head[i * step + distance] = high * cos[i] + low * sin[i];
    }
}

/* Of a token: all heads of `count` as one, given what they are divided by. */
static void norm_head(Norm norm, float *head, int64_t dim, int64_t number, float scale) {
    for (int64_t i = 0; i < dim; i++) head[i] = head[i] * scale * (norm.weight[number * dim + i] + (float)norm.offset);
}

static float scale_of(Norm norm, const float *x, int64_t size) {
    return norm.weight ? 1.0 / sqrt(length_of(x, size) / size + norm.eps) : 1.0;
}

/* Norms and turns queries and keys, and puts keys and values into the cache. */
static void place_heads(const SubLayer *part, const Pass *pass, float *own, Meeting *at) {
    int64_t dim = part->dim, num_q = part->num_heads, num_kv = part->num_kv_heads, all = num_q + 2 * num_kv, first, end;
    if (part->norms_all_heads) {
        for (int64_t t = 0; t < pass->num_tokens; t++) {
            own[2 * t] = scale_of(part->query_norm, pass->inner + t * all * dim, num_q * dim);
            own[2 * t + 1] = scale_of(part->key_norm, pass->inner + (t * all + num_q) * dim, num_kv * dim);
        }
        meet(at);
    }
    share(pass->num_tokens * all, 1, &first, &end);
    for (int64_t unit = first; unit < end; unit++) {
        int64_t t = unit / all, number = unit % all, is_key = number >= num_q, kv = number - num_q;
        float *head = pass->inner + unit * dim;
        if (kv < num_kv) {
            Norm norm = is_key ? part->key_norm : part->query_norm;
            if (norm.weight && part->norms_all_heads) norm_head(norm, head, dim, is_key ? kv : number, own[2 * t + is_key]);
            else if (norm.weight) normed(norm, head, dim, head);
            if (part->num_turned) turn(part, pass->turns + part->turn, pass->positions[t], head);
        }
        if (is_key)
            memcpy(pass->cache + part->layer * pass->layer_stride + (kv >= num_kv) * pass->values_stride +
                       pass->rows[t / pass->width] * pass->row_stride + kv % num_kv * pass->head_stride +
                       pass->slots[t] * dim, head, 4 * dim);
    }
}

/* The scores of up to LANES slots; lanes after them repeat the last. */
INLINE vec scores_of(const float *query, const float *keys, int64_t dim, int64_t count) {
    const float *key[LANES];
    vec sums[LANES];
    for (int i = 0; i < LANES; i++) key[i] = keys + (i < count ? i : count - 1) * dim, sums[i] = (vec){0};
    int64_t k = 0;
    for (; k + LANES <= dim; k += LANES) {
        vec part = *(const unaligned *)(query + k);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) sums[i] += part * *(const unaligned *)(key[i] + k);
    }
    if (k < dim) {
        vec part = load(query + k, dim - k);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) sums[i] += part * load(key[i] + k, dim - k);
    }
    return sums_of(sums);
}

/* Weights of `end` slots in place of their scores, not yet divided by their sum. */
static void softmax(float *scores, int64_t end) {
    float peak = -INFINITY;
    for (int64_t s = 0; s < end; s++) peak = scores[s] > peak ? scores[s] : peak;
    for (int64_t s = 0; s < end; s += LANES) *(unaligned *)(scores + s) = exp_of(*(unaligned *)(scores + s) - peak);
}

/* `count` numbers of a head, in V vectors, of what is seen: the same sums wherever that stands. */
INLINE void mix(const int V, const float *weights, const float *values, int64_t end, int64_t dim, int64_t count,
                float *out) {
    vec sums[4] = {{0}};
    float total = 0;
    for (int64_t s = 0; s < end; s++) {
        if (weights[s] == 0) continue;
        total += weights[s];
#pragma GCC unroll 4
        for (int i = 0; i < V; i++) sums[i] += weights[s] * load(values + s * dim + i * LANES, count - i * LANES);
    }
#pragma GCC unroll 4
    for (int i = 0; i < V; i++) store(out + i * LANES, sums[i] / total, count - i * LANES);
}

static void attend(const SubLayer *part, const Pass *pass, int64_t t, int64_t head, float *out, float *scores) {
    int64_t dim = part->dim, kv = head / (part->num_heads / part->num_kv_heads), row = t / pass->width, end = pass->end;
    const float *query = pass->inner + (t * (part->num_heads + 2 * part->num_kv_heads) + head) * dim;
    const float *keys = pass->cache + part->layer * pass->layer_stride + pass->rows[row] * pass->row_stride +
                        kv * pass->head_stride;
    Mask mask = pass->masks[part->mask];
    const float *seen = mask.values ? mask.values + row * mask.row_stride + t % pass->width * end : NULL;
    for (int64_t s = 0; s < end; s += LANES) {
        vec found = scores_of(query, keys + s * dim, dim, end - s) * (float)part->scaling;
        if (part->softcap) { /* tanh(z) = 2 sigmoid(2z) - 1 */
            float cap = part->softcap;
            found = (2.0f * sigmoid(found * (2.0f / cap)) - 1.0f) * cap;
        }
        if (seen) found += load(seen + s, end - s);
        *(unaligned *)(scores + s) = found;
    }
    softmax(scores, end);
    const float *values = keys + pass->values_stride;
    int64_t d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES) mix(4, scores, values + d, end, dim, 4 * LANES, out + d);
    for (; d < dim; d += LANES) mix(1, scores, values + d, end, dim, dim - d < LANES ? dim - d : LANES, out + d);
}

/* --------------------------------------------------------------------------------------------------- sub-layers */

static int64_t num_inner(const SubLayer *part) { return part->inner[0].rows + part->inner[1].rows + part->inner[2].rows; }

static void inner_products(const SubLayer *part, const Pass *pass, const float *x) {
    int64_t before = 0, all = num_inner(part), first, end;
    share(all, LANES, &first, &end);
    for (int i = 0; i < 3; before += part->inner[i++].rows) {
        int64_t rows = part->inner[i].rows, from = first > before ? first - before : 0, to = end - before;
        product(pass->num_tokens, part->inner[i], part->size, x, pass->inner + before, all, from, to < rows ? to : rows);
    }
}

/* What the outer product of an MLP reads, of the numbers `from` to `to`. */
static void gate(const SubLayer *part, const Pass *pass, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i += LANES) {
        vec value = activated(part->activation, load(pass->inner + i, to - i));
        if (part->is_gated) value *= load(pass->other + i, to - i);
        store(pass->inner + i, value, to - i);
    }
}

/* Each thread makes all that it needs. */
static void activate(const SubLayer *part, const Pass *pass, const float *x) {
    int64_t size = part->inner[0].rows, first, end, T = pass->num_tokens;
    share(size, LANES, &first, &end);
    product(T, part->inner[0], part->size, x, pass->inner, size, first, end);
    if (part->is_gated) product(T, part->inner[1], part->size, x, pass->other, size, first, end);
    for (int64_t t = 0; t < T; t++) gate(part, pass, t * size + first, t * size + end);
}

static void mixed_heads(const SubLayer *part, const Pass *pass, float *own) {
    int64_t first, end;
    share(pass->num_tokens * part->num_heads, 1, &first, &end);
    for (int64_t unit = first; unit < end; unit++)
        attend(part, pass, unit / part->num_heads, unit % part->num_heads, pass->other + unit * part->dim, own);
}

static void add(const SubLayer *part, const float *branch, int64_t first, int64_t end, float *hidden) {
    for (int64_t i = first; i < end; i++) hidden[i] += (float)part->multiplier * branch[i];
}

/* The branch, normed where that comes after it, times its multiplier, added to the stream. */
static void add_branch(const SubLayer *part, const Pass *pass, const float *x, int64_t K, float *hidden, float *own,
                       Meeting *at) {
    int64_t size = part->size, first, end;
    share(size, LANES, &first, &end);
    product(pass->num_tokens, part->outer, K, x, pass->branch, size, first, end);
    if (part->after.weight) meet(at);
    const float *branch = all_normed(part->after, pass->branch, pass->num_tokens, size, own);
    for (int64_t t = 0; t < pass->num_tokens; t++) add(part, branch + t * size, first, end, hidden + t * size);
}

void run_sublayers(const SubLayer *const *parts, int64_t count, const Pass *pass, float *hidden) {
    Meeting at = {0};
#pragma omp parallel num_threads(pass->num_threads)
    {
        float *own = pass->own + omp_get_thread_num() * pass->own_size;
        for (int64_t number = 0; number < count; number++) {
            const SubLayer *part = parts[number];
            const float *x = all_normed(part->before, hidden, pass->num_tokens, part->size, own);
            if (part->is_attention) {
                inner_products(part, pass, x);
                meet(&at);
                place_heads(part, pass, own, &at);
                meet(&at);
                mixed_heads(part, pass, own);
            } else
                activate(part, pass, x);
            meet(&at);
            int64_t K = part->is_attention ? part->num_heads * part->dim : part->inner[0].rows;
            add_branch(part, pass, part->is_attention ? pass->other : pass->inner, K, hidden, own, &at);
            meet(&at);
        }
    }
}

/* ------------------------------------------------------------------- many tokens: the products are made elsewhere */

/* Adds the branch of the sub-layer before, norms for the next; either may be none. */
void run_between(const SubLayer *before, const SubLayer *next, const Pass *pass, float *hidden, float *normed_to) {
#pragma omp parallel num_threads(pass->num_threads)
    {
        int64_t first, end, size = (before ? before : next)->size;
        share(pass->num_tokens, 1, &first, &end);
        for (int64_t t = first * size; t < end * size; t += size) {
            if (before && before->after.weight) normed(before->after, pass->branch + t, size, pass->branch + t);
            if (before) add(before, pass->branch + t, 0, size, hidden + t);
            if (next && next->before.weight) normed(next->before, hidden + t, size, normed_to + t);
        }
    }
}

void run_heads(const SubLayer *part, const Pass *pass) {
    Meeting at = {0};
#pragma omp parallel num_threads(pass->num_threads)
    place_heads(part, pass, pass->own + omp_get_thread_num() * pass->own_size, &at);
}

void run_activation(const SubLayer *part, const Pass *pass) {
#pragma omp parallel num_threads(pass->num_threads)
    {
        int64_t first, end;
        share(pass->num_tokens * part->inner[0].rows, LANES, &first, &end);
        gate(part, pass, first, end);
    }
}

/* ---------------------------------------------------------------------------------------------------------- head */

/* The first of the largest. */
static int64_t largest(const float *x, int64_t first, int64_t end) {
    vec peaks = (vec){0} - INFINITY;
    for (int64_t i = first; i + LANES <= end; i += LANES) {
        vec part = *(const unaligned *)(x + i);
        bits is_more = (bits)(part > peaks);
        peaks = (vec)((is_more & (bits)part) | (~is_more & (bits)peaks));
    }
    float peak = -INFINITY;
    for (int lane = 0; lane < LANES; lane++) peak = peaks[lane] > peak ? peaks[lane] : peak;
    for (int64_t i = end - (end - first) % LANES; i < end; i++) peak = x[i] > peak ? x[i] : peak;
    for (int64_t i = first; i < end; i++)
        if (x[i] == peak) return i;
    return first;
}

/* Scores [tokens, rows of the head] of the stream after the last sub-layer, and which of them are best. */
void run_head(Norm norm, Linear head, int64_t size, const Pass *pass, const float *hidden, float *scores, int64_t *best) {
    for (int64_t t = 0; t < pass->num_tokens; t++) best[t] = 0;
#pragma omp parallel num_threads(pass->num_threads)
    {
        int64_t first, end;
        float *own = pass->own + omp_get_thread_num() * pass->own_size;
        const float *x = all_normed(norm, hidden, pass->num_tokens, size, own);
        share(head.rows, LANES, &first, &end);
        product(pass->num_tokens, head, size, x, scores, head.rows, first, end);
#pragma omp barrier
        if (first < end)
            for (int64_t t = 0; t < pass->num_tokens; t++) {
                const float *row = scores + t * head.rows;
                int64_t found = largest(row, first, end);
#pragma omp critical
                if (row[found] > row[best[t]] || (row[found] == row[best[t]] && found < best[t])) best[t] = found;
            }
    }
}

/* A product by itself, for measuring. */
void run_linear(Linear by, int64_t size, int64_t num_tokens, const float *x, float *out, int64_t num_threads) {
#pragma omp parallel num_threads(num_threads)
    {
        int64_t first, end;
        share(by.rows, LANES, &first, &end);
        product(num_tokens, by, size, x, out, by.rows, first, end);
    }
}
