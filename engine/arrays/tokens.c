/* The inner loops of tokenizers (engine/tokenizers/models.py): byte-pair merges, and segmentations of maximum
 * probability. Tables are bytes objects made once from a vocabulary; they are charged like any other object, and only
 * these functions read them. */
#include "arrays.h"
#include "methods.h"

#include <string.h>

enum { WORDS_MIN = 8, TABLE_BITS_MIN = 3 };

static size_t place_of(uint64_t key, int bits) { return (size_t)(key * UINT64_C(0x9E3779B97F4A7C15) >> (64 - bits)); }

static int bits_for(size_t count) /* of a table that is at most half full */
{
    int bits = TABLE_BITS_MIN;
    while (((size_t)1 << bits) < 2 * count)
        bits++;
    return bits;
}

/* Runs no Python code, so that a caller may walk a list or a dict meanwhile. */
static int number_of(PyObject *value, uint32_t *number)
{
    if (!PyLong_Check(value)) {
        PyErr_Format(PyExc_TypeError, "expected numbers of tokens, got %s", Py_TYPE(value)->tp_name);
        return -1;
    }
    if (PyUnstable_Long_IsCompact((PyLongObject *)value) && PyUnstable_Long_CompactValue((PyLongObject *)value) >= 0) {
        *number = (uint32_t)PyUnstable_Long_CompactValue((PyLongObject *)value);
        return 0;
    }
    const long long found = PyLong_AsLongLong(value);
    if (found == -1 && PyErr_Occurred())
        return -1;
    if (found < 0 || found >= INT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "expected numbers of tokens from 0 to %d, got %lld", INT32_MAX - 1, found);
        return -1;
    }
    *number = (uint32_t)found;
    return 0;
}

/* ---- merges */
typedef struct merge {
    uint64_t pair; /* both token numbers, plus 1; 0: a free slot */
    uint32_t rank, made;
} merge;

typedef struct symbol {
    uint32_t number;
    int32_t before, after; /* neighbouring symbols; -1: none */
    Py_ssize_t start, end; /* in characters of the text */
    bool gone;             /* merged into its left neighbour */
} symbol;
typedef struct waiting { /* two neighbours that may be merged */
    uint32_t rank, made;
    int32_t left;
} waiting;
typedef struct word {
    array_state *state;
    symbol *symbols;
    waiting *heap;
    Py_ssize_t count, room, waits, heap_room;
    int64_t walked;
    bool stopped; /* in merge_of; an error is set */
} word;

/* merge_of for a pair whose place, `at`, another one has. The table may come from anywhere, and have no free slot. */
static __attribute__((noinline)) const merge *merge_beyond(word *job, const merge *table, int bits, uint64_t pair,
                                                           size_t at)
{
    const size_t last = ((size_t)1 << bits) - 1;
    for (size_t tried = 0; tried < last; tried++) {
        if (array_walk(job->state, &job->walked) < 0) {
            job->stopped = true;
            return NULL;
        }
        at = (at + 1) & last;
        if (table[at].pair == 0)
            return NULL;
        if (table[at].pair == pair)
            return &table[at];
    }
    return NULL;
}

/* NULL: there is none, or the search was stopped. */
static inline const merge *merge_of(word *job, const merge *table, int bits, uint32_t first, uint32_t second)
{
    const uint64_t pair = ((uint64_t)first << 32 | second) + 1;
    const size_t at = place_of(pair, bits);
    if (table[at].pair == pair)
        return &table[at];
    return table[at].pair == 0 ? NULL : merge_beyond(job, table, bits, pair, at);
}

/* _bpe_table(merges): the hash table of {(first, second): (rank, made)}; all are token numbers except the rank */
PyObject *array_function__bpe_table(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    PyObject *key, *value;
    const int bits = bits_for((size_t)PyDict_GET_SIZE(args[0]));
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(sizeof(merge) << bits));
    if (result == NULL)
        return NULL;
    merge *table = (merge *)(void *)PyBytes_AS_STRING(result);
    memset(table, 0, sizeof(merge) << bits);
    int64_t walked = 0;
    for (Py_ssize_t place = 0; PyDict_Next(args[0], &place, &key, &value);) {
        uint32_t first, second;
        merge one;
        if (!PyTuple_Check(key) || PyTuple_GET_SIZE(key) != 2 || !PyTuple_Check(value)
            || PyTuple_GET_SIZE(value) != 2) {
            PyErr_Format(PyExc_TypeError, "_bpe_table: expected pairs");
            goto failed;
        }
        if (number_of(PyTuple_GET_ITEM(key, 0), &first) < 0 || number_of(PyTuple_GET_ITEM(key, 1), &second) < 0
            || number_of(PyTuple_GET_ITEM(value, 0), &one.rank) < 0
            || number_of(PyTuple_GET_ITEM(value, 1), &one.made) < 0 || array_walk(state, &walked) < 0)
            goto failed;
        one.pair = ((uint64_t)first << 32 | second) + 1;
        size_t at = place_of(one.pair, bits);
        while (table[at].pair != 0)
            at = (at + 1) & (((size_t)1 << bits) - 1);
        table[at] = one;
    }
    return result;
failed:
    Py_DECREF(result);
    return NULL;
}

static bool sooner(const waiting *a, const waiting *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

/* Ensures room for one more item of `bytes` bytes in `*items`. */
static int room_for(void **items, Py_ssize_t count, Py_ssize_t *room, size_t bytes)
{
    if (count < *room)
        return 0;
    const Py_ssize_t more = *room < WORDS_MIN ? WORDS_MIN : 2 * *room;
    void *grown = more > INT32_MAX ? NULL : PyMem_Realloc(*items, (size_t)more * bytes);
    if (grown == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *items = grown;
    *room = more;
    return 0;
}

static int wait_for(word *job, waiting one)
{
    if (room_for((void **)&job->heap, job->waits, &job->heap_room, sizeof one) < 0)
        return -1;
    Py_ssize_t at = job->waits++;
    for (Py_ssize_t up; at > 0 && sooner(&one, &job->heap[up = (at - 1) / 2]); at = up)
        job->heap[at] = job->heap[up];
    job->heap[at] = one;
    return 0;
}

static waiting next_waiting(word *job)
{
    const waiting first = job->heap[0], last = job->heap[--job->waits];
    Py_ssize_t at = 0;
    for (Py_ssize_t down; (down = 2 * at + 1) < job->waits; at = down) {
        if (down + 1 < job->waits && sooner(&job->heap[down + 1], &job->heap[down]))
            down++;
        if (!sooner(&job->heap[down], &last))
            break;
        job->heap[at] = job->heap[down];
    }
    job->heap[at] = last;
    return first;
}

static int wait_for_pair(word *job, const merge *table, int bits, int32_t left, int32_t right)
{
    const merge *found = merge_of(job, table, bits, job->symbols[left].number, job->symbols[right].number);
    return found != NULL ? wait_for(job, (waiting){found->rank, found->made, left}) : job->stopped ? -1 : 0;
}

/* Merges neighbours, lowest rank first, and the leftmost of equal ranks. */
static int merge_all(word *job, const merge *table, int bits)
{
    for (int32_t i = 0; i + 1 < job->count; i++)
        if (wait_for_pair(job, table, bits, i, i + 1) < 0 || array_walk(job->state, &job->walked) < 0)
            return -1;
    while (job->waits > 0) {
        const waiting one = next_waiting(job);
        symbol *left = &job->symbols[one.left];
        if (array_walk(job->state, &job->walked) < 0)
            return -1;
        if (left->gone || left->after < 0)
            continue;
        symbol *right = &job->symbols[left->after];
        const merge *found = merge_of(job, table, bits, left->number, right->number);
        if (job->stopped)
            return -1;
        if (found == NULL || found->made != one.made)
            continue;
        left->number = one.made;
        left->end = right->end;
        right->gone = true;
        left->after = right->after;
        if (left->after >= 0) {
            job->symbols[left->after].before = one.left;
            if (wait_for_pair(job, table, bits, one.left, left->after) < 0)
                return -1;
        }
        if (left->before >= 0 && wait_for_pair(job, table, bits, left->before, one.left) < 0)
            return -1;
    }
    return 0;
}

static int symbol_add(word *job, uint32_t number, Py_ssize_t start, Py_ssize_t end)
{
    if (room_for((void **)&job->symbols, job->count, &job->room, sizeof *job->symbols) < 0)
        return -1;
    job->symbols[job->count] = (symbol){.number = number, .start = start, .end = end};
    job->count++;
    return 0;
}

/* The same of a triple (number, start, end). Runs no Python code: the triple is borrowed from a list. */
static int symbol_from(word *job, PyObject *triple)
{
    uint32_t number;
    Py_ssize_t span[2];
    if (!PyTuple_Check(triple) || PyTuple_GET_SIZE(triple) != 3) {
        PyErr_SetString(PyExc_TypeError, "_bpe_pieces: expected triples of numbers");
        return -1;
    }
    if (number_of(PyTuple_GET_ITEM(triple, 0), &number) < 0)
        return -1;
    for (int i = 0; i < 2; i++) {
        PyObject *value = PyTuple_GET_ITEM(triple, i + 1);
        span[i] = PyLong_Check(value) ? PyLong_AsSsize_t(value) : -1;
        if (span[i] < 0) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_TypeError, "_bpe_pieces: expected triples of numbers from 0 on");
            return -1;
        }
    }
    return symbol_add(job, number, span[0], span[1]);
}

/* The UTF-8 bytes of the character, also of a lone surrogate; returns their number. */
static int utf8_of(Py_UCS4 c, uint8_t bytes[4])
{
    const int size = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t first[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = size - 1; i > 0; i--, c >>= 6)
        bytes[i] = (uint8_t)(0x80 | (c & 0x3F));
    bytes[0] = (uint8_t)(first[size] | c);
    return size;
}

/* A token for each character, or for each of its bytes if the character has none, or the unknown token. */
static int symbols_of(word *job, PyObject *ids, PyObject *text, PyObject *unknown, bool fuse, PyObject *of_bytes)
{
    const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
    uint32_t number, unknown_number = 0;
    bool after_unknown = false; /* the last symbol is the unknown token, which the next one may be fused with */
    if (unknown != Py_None && number_of(unknown, &unknown_number) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *character = PyUnicode_Substring(text, i, i + 1);
        if (character == NULL || array_walk(job->state, &job->walked) < 0) {
            Py_XDECREF(character);
            return -1;
        }
        PyObject *found = PyDict_GetItemWithError(ids, character); /* borrowed: number_of runs no Python code */
        Py_DECREF(character);
        if (found == NULL && PyErr_Occurred())
            return -1;
        if (found != NULL) {
            if (number_of(found, &number) < 0 || symbol_add(job, number, i, i + 1) < 0)
                return -1;
            after_unknown = false;
            continue;
        }
        uint8_t bytes[4];
        const int size = of_bytes == Py_None ? 0 : utf8_of(PyUnicode_READ_CHAR(text, i), bytes);
        bool all = size > 0;
        for (int b = 0; b < size; b++)
            all = all && PyTuple_GET_ITEM(of_bytes, bytes[b]) != Py_None;
        for (int b = 0; all && b < size; b++)
            if (number_of(PyTuple_GET_ITEM(of_bytes, bytes[b]), &number) < 0 || symbol_add(job, number, i, i + 1) < 0)
                return -1;
        if (all || unknown == Py_None)
            continue;
        if (after_unknown && fuse)
            job->symbols[job->count - 1].end = i + 1;
        else if (symbol_add(job, unknown_number, i, i + 1) < 0)
            return -1;
        after_unknown = true;
    }
    return 0;
}

/* The remaining symbols, as two lists: (numbers, spans of characters). */
static PyObject *remaining_symbols(const word *job)
{
    Py_ssize_t left = 0, at = 0;
    for (Py_ssize_t i = 0; i < job->count; i++)
        left += !job->symbols[i].gone;
    PyObject *numbers = PyList_New(left), *spans = numbers == NULL ? NULL : PyList_New(left), *both = NULL;
    for (Py_ssize_t i = 0; spans != NULL && i < job->count; i++) {
        const symbol *one = &job->symbols[i];
        if (one->gone)
            continue;
        PyObject *number = PyLong_FromUnsignedLong(one->number), *span = Py_BuildValue("nn", one->start, one->end);
        if (number != NULL)
            PyList_SET_ITEM(numbers, at, number);
        if (span != NULL)
            PyList_SET_ITEM(spans, at, span);
        if (number == NULL || span == NULL)
            Py_CLEAR(spans);
        at++;
    }
    if (spans != NULL)
        both = PyTuple_Pack(2, numbers, spans);
    Py_XDECREF(numbers);
    Py_XDECREF(spans);
    return both;
}

/* _bpe_pieces(ids, table, text, unknown, fuse, of_bytes): the tokens of a text as (numbers, spans of characters).
 * `unknown` is a number or None, `of_bytes` a tuple of 256 numbers or Nones, or None. If `text` is a list, it contains
 * the symbols themselves: (number, start, end). */
PyObject *array_function__bpe_pieces(PyObject *module, ARRAY_VECTORCALL)
{
    PyObject *ids = args[0], *table = args[1], *text = args[2], *of_bytes = args[5], *result = NULL;
    const Py_ssize_t size = PyBytes_GET_SIZE(table) / (Py_ssize_t)sizeof(merge);
    if (size < 1 << TABLE_BITS_MIN || (size & (size - 1)) != 0 || (!PyUnicode_Check(text) && !PyList_Check(text))
        || (of_bytes != Py_None && PyTuple_GET_SIZE(of_bytes) != 256))
        return PyErr_Format(PyExc_TypeError, "_bpe_pieces: expected a dict, a table, a text and a tuple of 256");
    const int bits = __builtin_ctzll((unsigned long long)size);
    word job = {.state = array_state_of(module)};
    int status = 0;
    if (PyUnicode_Check(text))
        status = symbols_of(&job, ids, text, args[3], args[4] == Py_True, of_bytes);
    for (Py_ssize_t i = 0; status == 0 && PyList_Check(text) && i < PyList_GET_SIZE(text); i++)
        status = symbol_from(&job, PyList_GET_ITEM(text, i));
    for (Py_ssize_t i = 0; i < job.count; i++) {
        job.symbols[i].before = (int32_t)i - 1;
        job.symbols[i].after = i + 1 < job.count ? (int32_t)i + 1 : -1;
    }
    if (status == 0 && merge_all(&job, (const merge *)(const void *)PyBytes_AS_STRING(table), bits) == 0)
        result = remaining_symbols(&job);
    else if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "_bpe_pieces: expected triples of numbers");
    PyMem_Free(job.symbols);
    PyMem_Free(job.heap);
    return result;
}

/* ---- probabilities
 * A table is a header, the nodes of the trie of tokens, and its edges, hashed by (node, character). */
typedef struct tree_header {
    uint64_t nodes;
    int64_t bits; /* log2 of the number of slots for edges */
} tree_header;
typedef struct tree_node {
    double score;
    int64_t number; /* -1: not a token */
} tree_node;
typedef struct tree_edge {
    uint64_t key; /* node and character, plus 1; 0: a free slot */
    uint64_t node;
} tree_edge;
typedef struct tree {
    tree_node *node;
    tree_edge *edge;
    Py_ssize_t nodes, room;
    int bits;
} tree;

static uint64_t edge_key(uint64_t node, Py_UCS4 c) { return (node << 21 | c) + 1; }

/* The edge with this key, or the free slot for it; NULL: neither, which only a table from elsewhere has. */
static tree_edge *edge_of(tree_edge *edges, int bits, uint64_t key)
{
    const size_t last = ((size_t)1 << bits) - 1;
    size_t at = place_of(key, bits);
    for (size_t tried = 0; edges[at].key != 0 && edges[at].key != key; tried++) {
        if (tried == last)
            return NULL;
        at = (at + 1) & last;
    }
    return &edges[at];
}

static int edges_grow(tree *trie)
{
    const int bits = trie->bits + 1;
    tree_edge *edges = PyMem_Calloc((size_t)1 << bits, sizeof *edges);
    if (edges == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t at = 0; trie->edge != NULL && at < (size_t)1 << trie->bits; at++)
        if (trie->edge[at].key != 0)
            *edge_of(edges, bits, trie->edge[at].key) = trie->edge[at];
    PyMem_Free(trie->edge);
    trie->edge = edges;
    trie->bits = bits;
    return 0;
}

static Py_ssize_t node_new(tree *trie)
{
    if (room_for((void **)&trie->node, trie->nodes, &trie->room, sizeof *trie->node) < 0)
        return -1;
    trie->node[trie->nodes] = (tree_node){0, -1};
    return trie->nodes++;
}

static int token_add(tree *trie, PyObject *text, int64_t number, double score)
{
    Py_ssize_t node = 0;
    for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(text); i++) {
        if (trie->nodes >= (Py_ssize_t)1 << trie->bits >> 1 && edges_grow(trie) < 0)
            return -1;
        const uint64_t key = edge_key((uint64_t)node, PyUnicode_READ_CHAR(text, i));
        tree_edge *edge = edge_of(trie->edge, trie->bits, key);
        if (edge->key == 0) {
            const Py_ssize_t next = node_new(trie);
            if (next < 0)
                return -1;
            *edge = (tree_edge){key, (uint64_t)next};
        }
        node = (Py_ssize_t)edge->node;
    }
    trie->node[node] = (tree_node){score, number};
    return 0;
}

/* _unigram_table(ids, scores): the table of {text: number} and the list of scores by number */
PyObject *array_function__unigram_table(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    PyObject *scores = args[1], *text, *value, *result = NULL;
    tree trie = {.bits = 5};
    int64_t walked = 0;
    bool fine = edges_grow(&trie) == 0 && node_new(&trie) == 0;
    for (Py_ssize_t place = 0; fine && PyDict_Next(args[0], &place, &text, &value);) {
        uint32_t number;
        fine = PyUnicode_Check(text) && number_of(value, &number) == 0 && (Py_ssize_t)number < PyList_GET_SIZE(scores)
               && array_walk(state, &walked) == 0;
        if (!fine)
            break;
        PyObject *given = PyList_GET_ITEM(scores, number);
        fine = PyFloat_Check(given) || PyLong_CheckExact(given); /* others would run Python code here */
        if (!fine)
            break;
        const double score = PyFloat_AsDouble(given);
        fine = (score != -1 || !PyErr_Occurred()) && token_add(&trie, text, number, score) == 0;
    }
    if (fine) {
        const size_t nodes = (size_t)trie.nodes * sizeof *trie.node, edges = sizeof *trie.edge << trie.bits;
        result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(sizeof(tree_header) + nodes + edges));
        if (result != NULL) {
            char *to = PyBytes_AS_STRING(result);
            memcpy(to, &(tree_header){(uint64_t)trie.nodes, trie.bits}, sizeof(tree_header));
            memcpy(to + sizeof(tree_header), trie.node, nodes);
            memcpy(to + sizeof(tree_header) + nodes, trie.edge, edges);
        }
    } else if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "_unigram_table: expected texts and their numbers");
    PyMem_Free(trie.node);
    PyMem_Free(trie.edge);
    return result;
}

typedef struct best { /* the best segmentation up to a position */
    double score;
    Py_ssize_t start; /* start of its last token; -1: none known */
    int64_t number;
} best;

static void better(best *at, double score, Py_ssize_t start, int64_t number)
{
    if (at->start < 0 || score > at->score)
        *at = (best){score, start, number};
}

/* [(number, start, end)] of the best segmentation; adjacent unknown characters are one item with number -1. */
static PyObject *segments(const best *ends, Py_ssize_t size, int64_t unknown)
{
    PyObject *result = PyList_New(0);
    Py_ssize_t last = -1; /* the end of the current run of unknown characters */
    for (Py_ssize_t end = size; result != NULL && (end > 0 || last >= 0);) {
        const bool known = end > 0 && !(unknown >= 0 && ends[end].number == unknown);
        PyObject *item = NULL;
        if (last >= 0 && (known || end == 0)) {
            item = Py_BuildValue("inn", -1, end, last);
            last = -1;
        } else if (known) {
            item = Py_BuildValue("Lnn", (long long)ends[end].number, ends[end].start, end);
            end = ends[end].start;
        } else {
            last = last < 0 ? end : last;
            end = ends[end].start;
            continue;
        }
        if (item == NULL || PyList_Append(result, item) < 0)
            Py_CLEAR(result);
        Py_XDECREF(item);
    }
    if (result != NULL && PyList_Reverse(result) < 0)
        Py_CLEAR(result);
    return result;
}

/* _unigram_pieces(table, text, unknown, score): [(number, start, end)] of the most probable segmentation, in
 * characters; -1: unknown. None if the text has unknown characters and `unknown`, their number, is None; `score` is the
 * score of an unknown character. */
PyObject *array_function__unigram_pieces(PyObject *module, ARRAY_VECTORCALL)
{
    array_state *state = array_state_of(module);
    PyObject *text = args[1], *result = NULL;
    const double unknown_score = PyFloat_AS_DOUBLE(args[3]);
    uint32_t number = 0;
    if (args[2] != Py_None && number_of(args[2], &number) < 0)
        return NULL;
    tree_header head = {0, 0};
    const char *table = PyBytes_AS_STRING(args[0]);
    const size_t bytes = (size_t)PyBytes_GET_SIZE(args[0]);
    if (bytes >= sizeof head)
        memcpy(&head, table, sizeof head);
    if (head.nodes < 1 || head.nodes > bytes / sizeof(tree_node) || head.bits < 1 || head.bits > 40
        || bytes != sizeof head + head.nodes * sizeof(tree_node) + (sizeof(tree_edge) << head.bits))
        return PyErr_Format(PyExc_TypeError, "_unigram_pieces: expected a table and a text");
    const tree_node *nodes = (const tree_node *)(const void *)(table + sizeof head);
    tree_edge *edges = (tree_edge *)(void *)(uintptr_t)(nodes + head.nodes);
    const int64_t unknown = args[2] == Py_None ? -1 : (int64_t)number;
    const Py_ssize_t size = PyUnicode_GET_LENGTH(text);
    best *ends = PyMem_Calloc((size_t)size + 1, sizeof *ends);
    if (ends == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t end = 1; end <= size; end++)
        ends[end].start = -1;
    int64_t walked = 0;
    for (Py_ssize_t start = 0; start < size; start++) {
        const double before = ends[start].score;
        uint64_t node = 0;
        bool single = false;
        for (Py_ssize_t at = start; at < size; at++) {
            const tree_edge *edge = edge_of(edges, (int)head.bits, edge_key(node, PyUnicode_READ_CHAR(text, at)));
            if (array_walk(state, &walked) < 0)
                goto done;
            if (edge == NULL || edge->key == 0 || edge->node >= head.nodes)
                break;
            node = edge->node;
            if (nodes[node].number < 0)
                continue;
            better(&ends[at + 1], nodes[node].score + before, start, nodes[node].number);
            single = single || at == start;
        }
        if (!single && (ends[start + 1].start < 0 || unknown_score + before > ends[start + 1].score)) {
            if (unknown < 0) {
                result = Py_NewRef(Py_None);
                goto done;
            }
            better(&ends[start + 1], unknown_score + before, start, unknown);
        }
    }
    result = segments(ends, size, unknown);
done:
    PyMem_Free(ends);
    return result;
}
