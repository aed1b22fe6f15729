/* Reads the Python stack of a running thread from another thread, which holds neither its GIL nor any of its locks.
 *
 * Every read goes through process_vm_readv(2): where memory is unmapped, it fails instead of crashing. A value counts
 * only if it has the expected type. A stack that changes during the read may show frames of two moments, a few
 * microseconds apart.
 */
#ifndef VMH_STACK_H
#define VMH_STACK_H

#include "cpython/compat.h"

typedef struct vmh_stack_frame {
    uintptr_t code; /* the address of its code object */
    int offset;     /* of the instruction, in code units from the first one */
    /* these distinguish the code object from a later one at the same address */
    uintptr_t name, line_table;
    int first_line;
} vmh_stack_frame;

enum { VMH_STACK_NAME_BYTES = 256, VMH_STACK_LINES_BYTES = 1 << 16 };

typedef struct vmh_stack_code {
    char file[VMH_STACK_NAME_BYTES], name[VMH_STACK_NAME_BYTES]; /* UTF-8; longer ones are truncated */
    int first_line;
    size_t lines_size;
    unsigned char *lines; /* line table (Objects/locations.md in CPython's sources); the caller frees it */
} vmh_stack_code;

/* Whether this system lets the process read itself: 0 or an errno. */
int vmh_stack_readable(void);
/* The frames of `ts`, innermost first, without CPython's own frames that have no code. -1: the stack could not be read.
 * If there are more than `max`, the outermost are left out and *cut is set. */
int vmh_stack_read(PyThreadState *ts, vmh_stack_frame *frames, int max, bool *cut);
/* The same for the calling thread's own `ts`, which cannot change meanwhile: plain reads, little stack. */
int vmh_stack_read_own(PyThreadState *ts, vmh_stack_frame *frames, int max);
/* The names and the line table of a frame's code object. False: the object is gone, or there is no memory. */
bool vmh_stack_name(const vmh_stack_frame *frame, vmh_stack_code *code);
/* The same for a frame of vmh_stack_read_own, by plain reads. */
bool vmh_stack_name_own(const vmh_stack_frame *frame, vmh_stack_code *code);
/* The same as vmh_stack_name, but the line table goes into `room`, of VMH_STACK_LINES_BYTES: allocates nothing, for
 * signal handlers. */
bool vmh_stack_name_into(const vmh_stack_frame *frame, vmh_stack_code *code, unsigned char *room);
/* The line number of an instruction by a line table; 0: it has none. */
int vmh_stack_line(const unsigned char *lines, size_t size, int first_line, int offset);

#endif
