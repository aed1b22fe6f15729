/* What stands in the place of CPython's parser, tokenizer, AST, symbol table, code generator and assembler.
 *
 * The rest of CPython calls or points at these names; the linker finds them here and so leaves the archive's members
 * out. Compiling raises a RuntimeError that says so. The tables of opcodes, which live in members of the compiler, come
 * from CPython's own headers.
 */
#define Py_BUILD_CORE        1
#define NEED_OPCODE_METADATA 1
#include <Python.h>

#include "internal/pycore_opcode_metadata.h"
#include "internal/pycore_opcode_utils.h"

/* Their prototypes stand in internal headers that drag in the AST, which is not here. */
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

/* There is no AST type that an object could be of. */
int PyAST_Check(PyObject *Py_UNUSED(object)) { return 0; }
void _PyAST_Fini(PyInterpreterState *Py_UNUSED(interpreter)) {}

/* A source file's encoding, for its lines in tracebacks: NULL stands for UTF-8. */
char *_PyTokenizer_FindEncodingFilename(int Py_UNUSED(descriptor), PyObject *Py_UNUSED(name)) { return NULL; }

/* Two types that CPython makes ready at start-up and nothing can make an object of. */
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

/* ---- what is needed without a compiler, too ---- */

/* How a private name of a class is called outside it: for __slots__. A new reference. */
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

/* Of instructions that are in code objects; those that only the compiler has between its passes are not. */
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
