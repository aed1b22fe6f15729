/* Reads CPython's internal structures, like compat.c: those of frames and code objects. */
#define Py_BUILD_CORE 1
#include "cpython/stack.h"
#include "internal/pycore_interpframe_structs.h"
#include "internal/pycore_stackref.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* This thread reads its own stack, which is mapped: plain reads suffice. */
static _Thread_local bool own __attribute__((tls_model("initial-exec")));

static bool take(void *to, uintptr_t from, size_t size)
{
    if (own) {
        memcpy(to, (const void *)from, size); /* NOLINT(performance-no-int-to-ptr) */
        return true;
    }
    struct iovec here = {to, size}, there = {(void *)from, size}; /* NOLINT(performance-no-int-to-ptr) */
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)size;
}

int vmh_stack_readable(void)
{
    volatile int known = 42;
    int seen = 0;
    errno = 0;
    if (take(&seen, (uintptr_t)&known, sizeof seen) && seen == 42)
        return 0;
    return errno == 0 ? EIO : errno;
}

/* A code object up to its instructions. */
typedef struct code_head {
    char bytes[offsetof(PyCodeObject, co_code_adaptive)];
} code_head;

#define FIELD(head, type, field) (*(const type *)((head)->bytes + offsetof(PyCodeObject, field)))

static bool is_code(const code_head *head)
{
    return FIELD(head, PyTypeObject *, ob_base.ob_base.ob_type) == &PyCode_Type;
}

/* A copy of the top of a thread's frame stack, taken in one read: reading frame by frame would mix states. */
typedef struct stack_copy {
    uintptr_t begin; /* where the copied bytes lie */
    size_t size;
    char bytes[16 * 1024];
} stack_copy;

static void copy_stack(stack_copy *copy, const PyThreadState *ts, uintptr_t top)
{
    uintptr_t chunk = (uintptr_t)ts->datastack_chunk, limit = (uintptr_t)ts->datastack_limit;
    size_t head = offsetof(struct _PyInterpreterFrame, localsplus);
    copy->begin = copy->size = 0;
    if (chunk == 0 || top < chunk || top + head > limit)
        return; /* for example, a generator's frame */
    uintptr_t end = top + head;
    copy->begin = end - chunk > sizeof copy->bytes ? end - sizeof copy->bytes : chunk;
    if (take(copy->bytes, copy->begin, end - copy->begin))
        copy->size = end - copy->begin;
}

static bool take_frame(struct _PyInterpreterFrame *frame, uintptr_t from, const stack_copy *copy)
{
    size_t head = offsetof(struct _PyInterpreterFrame, localsplus);
    if (copy != NULL && from >= copy->begin && from + head <= copy->begin + copy->size) {
        memcpy(frame, copy->bytes + (from - copy->begin), head);
        return true;
    }
    return take(frame, from, head);
}

/* Reads frames outwards from `at`, the innermost. A stack that changes meanwhile may form a cycle of links that are no
 * frames of Python. In a real stack at most every second link is none: more are not followed, as each costs two system
 * calls. */
static int read_frames(uintptr_t at, const stack_copy *copy, vmh_stack_frame *frames, int max, bool *cut)
{
    int count = 0;
    *cut = false;
    for (int hop = 0; at != 0; hop++) {
        struct _PyInterpreterFrame frame;
        code_head head;
        if (hop > 2 * max + 2 || !take_frame(&frame, at, copy))
            return -1;
        at = (uintptr_t)frame.previous;
        uintptr_t code = (uintptr_t)BITS_TO_PTR_MASKED(frame.f_executable);
        if (code == 0 || frame.owner == FRAME_OWNED_BY_INTERPRETER || !take(&head, code, sizeof head)
            || !is_code(&head))
            continue; /* an entry frame (C calling Python), or a frame still being set up */
        if (count == max) {
            *cut = true;
            break;
        }
        ptrdiff_t offset = (const char *)frame.instr_ptr - (const char *)(code + sizeof head);
        ptrdiff_t size = (ptrdiff_t)FIELD(&head, Py_ssize_t, ob_base.ob_size) * (ptrdiff_t)sizeof(_Py_CODEUNIT);
        frames[count++] = (vmh_stack_frame){
            .code = code,
            .offset = offset >= 0 && offset < size ? (int)(offset / (ptrdiff_t)sizeof(_Py_CODEUNIT)) : 0,
            .name = (uintptr_t)FIELD(&head, PyObject *, co_qualname),
            .line_table = (uintptr_t)FIELD(&head, PyObject *, co_linetable),
            .first_line = FIELD(&head, int, co_firstlineno),
        };
    }
    return count;
}

int vmh_stack_read(PyThreadState *of, vmh_stack_frame *frames, int max, bool *cut)
{
    PyThreadState ts;
    stack_copy copy;
    *cut = false;
    if (!take(&ts, (uintptr_t)of, sizeof ts))
        return -1;
    uintptr_t at = (uintptr_t)ts.current_frame;
    copy_stack(&copy, &ts, at);
    return read_frames(at, &copy, frames, max, cut);
}

int vmh_stack_read_own(PyThreadState *ts, vmh_stack_frame *frames, int max)
{
    bool cut;
    own = true;
    int count = read_frames((uintptr_t)ts->current_frame, NULL, frames, max, &cut);
    own = false;
    return count;
}

/* Encodes one character in UTF-8 and returns the number of bytes. */
static size_t put_character(char *to, uint32_t c)
{
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        to[0] = (char)(0xC0 | c >> 6);
        to[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c >= 0xD800 && c < 0xE000)
        c = 0xFFFD; /* a lone surrogate */
    if (c < 0x10000) {
        to[0] = (char)(0xE0 | c >> 12);
        to[1] = (char)(0x80 | (c >> 6 & 0x3F));
        to[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    to[0] = (char)(0xF0 | (c >> 18 & 7));
    to[1] = (char)(0x80 | (c >> 12 & 0x3F));
    to[2] = (char)(0x80 | (c >> 6 & 0x3F));
    to[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

static bool take_text(char to[VMH_STACK_NAME_BYTES], uintptr_t text)
{
    PyCompactUnicodeObject head;
    if (text == 0 || !take(&head, text, sizeof(PyASCIIObject)) || Py_TYPE(&head) != &PyUnicode_Type
        || !head._base.state.compact)
        return false;
    unsigned kind = head._base.state.kind;
    size_t length = (size_t)head._base.length, most = VMH_STACK_NAME_BYTES - 1, size = 0;
    if (kind != 1 && kind != 2 && kind != 4)
        return false;
    uint32_t characters[VMH_STACK_NAME_BYTES];
    length = length < most ? length : most;
    if (!take(characters, text + (head._base.state.ascii ? sizeof(PyASCIIObject) : sizeof head), length * kind))
        return false;
    for (size_t i = 0; i < length; i++) {
        uint32_t c = kind == 1   ? ((const uint8_t *)characters)[i]
                     : kind == 2 ? ((const uint16_t *)characters)[i]
                                 : characters[i];
        char bytes[4];
        size_t more = put_character(bytes, c);
        if (size + more > most)
            break;
        memcpy(to + size, bytes, more);
        size += more;
    }
    to[size] = 0;
    return true;
}

bool vmh_stack_name_into(const vmh_stack_frame *frame, vmh_stack_code *code, unsigned char *room)
{
    code_head head;
    struct {
        PyObject_VAR_HEAD
    } table;
    code->lines = NULL;
    if (!take(&head, frame->code, sizeof head) || !is_code(&head)
        || !take_text(code->name, (uintptr_t)FIELD(&head, PyObject *, co_qualname))
        || !take_text(code->file, (uintptr_t)FIELD(&head, PyObject *, co_filename)))
        return false;
    code->first_line = FIELD(&head, int, co_firstlineno);
    uintptr_t lines = (uintptr_t)FIELD(&head, PyObject *, co_linetable);
    if (lines == 0 || !take(&table, lines, sizeof table) || Py_TYPE(&table) != &PyBytes_Type
        || table.ob_base.ob_size < 0)
        return false;
    code->lines_size =
        (size_t)table.ob_base.ob_size < VMH_STACK_LINES_BYTES ? (size_t)table.ob_base.ob_size : VMH_STACK_LINES_BYTES;
    if (!take(room, lines + offsetof(PyBytesObject, ob_sval), code->lines_size))
        return false;
    code->lines = room;
    return true;
}

bool vmh_stack_name(const vmh_stack_frame *frame, vmh_stack_code *code)
{
    unsigned char *room = malloc(VMH_STACK_LINES_BYTES), *fitting;
    if (room == NULL || !vmh_stack_name_into(frame, code, room)) {
        free(room);
        code->lines = NULL;
        return false;
    }
    if ((fitting = realloc(room, code->lines_size + 1)) != NULL)
        code->lines = fitting;
    return true;
}

bool vmh_stack_name_own(const vmh_stack_frame *frame, vmh_stack_code *code)
{
    own = true;
    bool named = vmh_stack_name(frame, code);
    own = false;
    return named;
}

/* A number in the line table: six bits per byte; bit 6 says that another byte follows. */
static unsigned varint(const unsigned char **at, const unsigned char *end)
{
    unsigned value = 0;
    for (int shift = 0; *at < end; shift += 6) {
        unsigned byte = *(*at)++;
        if (shift < 30)
            value |= (byte & 63) << shift;
        if (!(byte & 64))
            break;
    }
    return value;
}

int vmh_stack_line(const unsigned char *lines, size_t size, int first_line, int offset)
{
    const unsigned char *at = lines, *end = lines + size;
    int64_t line = first_line;
    int units = 0;
    while (at < end) {
        unsigned entry = *at++, form = entry >> 3 & 15;
        if (form == 13 || form == 14) {
            unsigned delta = varint(&at, end);
            line += delta & 1 ? -(int64_t)(delta >> 1) : (int64_t)(delta >> 1);
        } else if (form >= 10 && form <= 12) {
            line += form - 10;
        }
        units += (int)(entry & 7) + 1;
        if (offset < units)
            return form == 15 || line < 0 || line > INT32_MAX ? 0 : (int)line;
        while (at < end && !(*at & 0x80))
            at++; /* columns */
    }
    return 0;
}
