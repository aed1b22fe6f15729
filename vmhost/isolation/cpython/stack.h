/* The Python stack of a thread that runs on, read by another thread that holds neither its GIL nor any lock of it.
 *
 * Every read goes through process_vm_readv(2): where memory is gone it fails, and never crashes. What was read counts
 * only if it has the type that belongs there. A stack that changes meanwhile may show frames of two moments, a few
 * microseconds apart.
 */
#ifndef VMH_STACK_H
#define VMH_STACK_H

#include "cpython/compat.h"

typedef struct vmh_stack_frame {
    uintptr_t code; /* the address of its code object */
    int offset;     /* of the instruction, in code units from the first one */
    /* which tell this code object from another one at the same address */
    uintptr_t name, line_table;
    int first_line;
} vmh_stack_frame;

enum { VMH_STACK_NAME_BYTES = 256, VMH_STACK_LINES_BYTES = 1 << 16 };

typedef struct vmh_stack_code {
    char file[VMH_STACK_NAME_BYTES], name[VMH_STACK_NAME_BYTES]; /* UTF-8; the beginning of longer ones */
    int first_line;
    size_t lines_size;
    unsigned char *lines; /* its table of lines (Objects/locations.md in CPython's sources); owned, to be freed */
} vmh_stack_code;

/* Does this system let the process read itself? 0 or an errno. */
int vmh_stack_readable(void);
/* The frames of `ts`, the innermost first; frames of CPython's own that have no code are left out. -1: it could not be
 * read. More than `max`: the outermost are left out, and *cut is set. */
int vmh_stack_read(PyThreadState *ts, vmh_stack_frame *frames, int max, bool *cut);
/* The same of the calling thread's own `ts`, whose frames do not change meanwhile: plain reads, little stack. */
int vmh_stack_read_own(PyThreadState *ts, vmh_stack_frame *frames, int max);
/* What a code object is called. False: it is gone, or there is no memory. */
bool vmh_stack_name(const vmh_stack_frame *frame, vmh_stack_code *code);
/* The same of a frame of vmh_stack_read_own, by plain reads. */
bool vmh_stack_name_own(const vmh_stack_frame *frame, vmh_stack_code *code);
/* The same as vmh_stack_name, with the table of lines in `room`, of VMH_STACK_LINES_BYTES: allocates nothing, for
 * handlers of signals. */
bool vmh_stack_name_into(const vmh_stack_frame *frame, vmh_stack_code *code, unsigned char *room);
/* The line of an instruction by a table of lines; 0: it has none. */
int vmh_stack_line(const unsigned char *lines, size_t size, int first_line, int offset);

#endif
