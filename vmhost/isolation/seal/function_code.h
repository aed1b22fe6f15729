/* Code objects for functions that exist only at run time: methods of dataclasses, `__new__` of named tuples,
 * `types.coroutine`. */
#ifndef VMH_FUNCTION_CODE_H
#define VMH_FUNCTION_CODE_H

#include "cpython/compat.h"

/* namedtuple_code(fields), method_code(name, first_line, body_line, ...), coroutine_code(code) and others: see
 * function_code.c. They keep no state and need no VM. Ends with a NULL entry. */
extern PyMethodDef vmh_function_code_methods[];

#endif
