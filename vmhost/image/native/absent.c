/* Replaces CPython's parser, tokenizer, AST, symbol table, code generator and assembler.  The rest of CPython refers to
 * these names; the linker finds them here, and so leaves out the archive's members. Compiling raises a RuntimeError
 * with an explanation. The opcode tables, which are in members of the compiler, come from CPython's own headers.
 */
#define Py_BUILD_CORE        1
#define NEED_OPCODE_METADATA 1
#include <Python.h>

#include "internal/pycore_opcode_metadata.h"
#include "internal/pycore_opcode_utils.h"

/* The prototypes are in internal headers that need the AST, which is absent here. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

static void *refuse(void)
{
    PyErr_SetString(PyExc_RuntimeError,
                    "this Python has no compiler: it runs bytecode only; compile tasks where vmhost is installed "
                    "(`vmhost compile`) and run the bundle here");
    return NULL;
}

/* ---- parser, AST, compiler ---- */

void *_PyParser_ASTFromString(void) { return refuse(); }
void *_PyParser_ASTFromFile(void) { return refuse(); }
void *_PyParser_InteractiveASTFromFile(void) { return refuse(); }
void *_PyAST_Compile(void) { return refuse(); }
void *PyAST_mod2obj(void) { return refuse(); }
void *PyAST_obj2mod(void) { return refuse(); }

int _PyAST_Validate(void)
{
    refuse();
    return 0;
}

int _PyCompile_AstPreprocess(void)
{
    refuse();
    return -1;
}

/* There are no AST types. */
int PyAST_Check(PyObject *Py_UNUSED(object)) { return 0; }
void _PyAST_Fini(PyInterpreterState *Py_UNUSED(interpreter)) {}

/* The encoding of a source file, for its lines in tracebacks; NULL means UTF-8. */
char *_PyTokenizer_FindEncodingFilename(int Py_UNUSED(descriptor), PyObject *Py_UNUSED(name)) { return NULL; }

/* Two types that CPython initializes at start; no objects of them can exist. */
PyTypeObject PySTEntry_Type = {
    PyVarObject_HEAD_INIT(&PyType_Type, 0).tp_name = "symtable entry",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
};
PyTypeObject _PyInstructionSequence_Type = {
    PyVarObject_HEAD_INIT(&PyType_Type, 0).tp_name = "InstructionSequence",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
};

/* ---- machine code ---- */

int _PyJIT_Compile(void)
{
    refuse();
    return -1;
}

void _PyJIT_Free(void) {}

/* ---- also needed without a compiler ---- */

/* The mangled form of a class's private name, for __slots__. A new reference. */
PyObject *_Py_Mangle(PyObject *class_name, PyObject *name)
{
    if (class_name == NULL || !PyUnicode_Check(class_name))
        return Py_NewRef(name);
    Py_ssize_t size = PyUnicode_GET_LENGTH(name), class_size = PyUnicode_GET_LENGTH(class_name), at = 0;
    bool private = size >= 2 && PyUnicode_READ_CHAR(name, 0) == '_' && PyUnicode_READ_CHAR(name, 1) == '_'
                   && !(PyUnicode_READ_CHAR(name, size - 1) == '_' && PyUnicode_READ_CHAR(name, size - 2) == '_')
                   && PyUnicode_FindChar(name, '.', 0, size, 1) == -1;
    while (at < class_size && PyUnicode_READ_CHAR(class_name, at) == '_')
        at++;
    if (!private || at == class_size)
        return Py_NewRef(name);
    PyObject *rest = PyUnicode_Substring(class_name, at, class_size);
    PyObject *mangled = rest == NULL ? NULL : PyUnicode_FromFormat("_%U%U", rest, name);
    Py_XDECREF(rest);
    return mangled;
}

/* Only for instructions in code objects, not for those that the compiler uses between its passes. */
int PyCompile_OpcodeStackEffectWithJump(int opcode, int oparg, int Py_UNUSED(jump))
{
    if (opcode < 0 || opcode > 255 || _PyOpcode_Deopt[opcode] != opcode)
        return PY_INVALID_STACK_EFFECT;
    int popped = _PyOpcode_num_popped(opcode, oparg), pushed = _PyOpcode_num_pushed(opcode, oparg);
    return popped < 0 || pushed < 0 ? PY_INVALID_STACK_EFFECT : pushed - popped;
}

int PyCompile_OpcodeStackEffect(int opcode, int oparg)
{
    return PyCompile_OpcodeStackEffectWithJump(opcode, oparg, -1);
}
