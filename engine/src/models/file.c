/* Reads a model file (docs/model-format.md). The file is not trusted: every number is checked against the range that it
 * indexes. */
#include "models/file.h"
#include "models/makers.h"
#include "runtime/internal.h"

#include <string.h>

typedef struct header {
    char magic[8];
    uint32_t version, flags;
    uint64_t file_size;
    uint32_t tensors, nodes, inputs, outputs, operands, opens;
    uint64_t names_size, weights_size;
    uint32_t varyings, terms, notes_at, notes_size, quotients, needs, guards, reserved[9];
} header;
_Static_assert(sizeof(header) == MODEL_HEADER, "the header has no holes");

#define DAMAGED(...) vme_fail(VME_BAD_VALUE, MODEL_REFUSED __VA_ARGS__)

model_tensor_record model_file_tensor(const model_file *file, uint32_t number)
{
    model_tensor_record record;
    memcpy(&record, file->tensor_records + (size_t)number * sizeof record, sizeof record);
    return record;
}

model_node_record model_file_node(const model_file *file, uint32_t number)
{
    model_node_record record;
    memcpy(&record, file->node_records + (size_t)number * sizeof record, sizeof record);
    return record;
}

model_quotient_record model_file_quotient(const model_file *file, uint32_t number)
{
    model_quotient_record record;
    memcpy(&record, file->quotient_list + (size_t)number * sizeof record, sizeof record);
    return record;
}

model_need_record model_file_need(const model_file *file, uint32_t number)
{
    model_need_record record;
    memcpy(&record, file->need_list + (size_t)number * sizeof record, sizeof record);
    return record;
}

model_guard_record model_file_guard(const model_file *file, uint32_t number)
{
    model_guard_record record;
    memcpy(&record, file->guard_list + (size_t)number * sizeof record, sizeof record);
    return record;
}

uint32_t model_file_number(const char *list, uint32_t field)
{
    uint32_t number;
    memcpy(&number, list + (size_t)field * sizeof number, sizeof number);
    return number;
}

static vme_status check_name(uint32_t at, uint32_t size, uint64_t names_size, const char *what, uint32_t number)
{
    if (size > MODEL_NAME_MAX || at > names_size || size > names_size - at)
        return DAMAGED("the name of %s %u lies outside the names", what, number);
    return VME_OK;
}

/* Checks the view's elements, if it has any, against its base. The base's own record is checked on its turn. */
static vme_status check_view(const model_file *file, uint32_t number, const model_tensor_record *view,
                             bool has_elements)
{
    if (view->base >= file->tensors)
        return DAMAGED("tensor %u is a view of tensor %u of %u", number, view->base, file->tensors);
    model_tensor_record base = model_file_tensor(file, view->base);
    if (base.kind == MODEL_VIEW || base.dtype != view->dtype || base.rank > MODEL_RANK)
        return DAMAGED("tensor %u is a view of tensor %u, which is a view itself or of another dtype", number,
                       view->base);
    int64_t count = 1, low = view->offset, high = view->offset;
    bool fits = view->data_at == 0 && view->data_size == 0;
    if (fits && !has_elements)
        return VME_OK;
    for (uint32_t d = 0; d < base.rank; d++)
        fits = fits && base.shape[d] >= 1 && !__builtin_mul_overflow(count, base.shape[d], &count);
    for (uint32_t d = 0; d < view->rank && fits; d++) {
        int64_t span;
        fits = !__builtin_mul_overflow(view->shape[d] - 1, view->strides[d], &span)
               && !__builtin_add_overflow(span < 0 ? low : high, span, span < 0 ? &low : &high)
               && view->strides[d] > -MODEL_ELEMENTS_MAX && view->strides[d] < MODEL_ELEMENTS_MAX;
    }
    if (!fits || low < 0 || high >= count)
        return DAMAGED("tensor %u is a view beyond the elements of tensor %u", number, view->base);
    return VME_OK;
}

static vme_status check_tensor(const model_file *file, uint32_t number, const header *head, bool of_plan)
{
    model_tensor_record tensor = model_file_tensor(file, number);
    vme_status status = check_name(tensor.name_at, tensor.name_size, head->names_size, "tensor", number);
    if (status != VME_OK)
        return status;
    if (tensor.dtype >= VME_DTYPE_COUNT)
        return DAMAGED("tensor %u has dtype %u, this engine knows 0 to %d", number, tensor.dtype, VME_DTYPE_COUNT - 1);
    if (tensor.rank > MODEL_RANK)
        return DAMAGED("tensor %u has %u dimensions, at most %d are known", number, tensor.rank, MODEL_RANK);
    const int64_t min_size = of_plan && tensor.kind != MODEL_CONSTANT ? 0 : 1;
    int64_t count = 1; /* with 1 for a size of 0: memory is assigned as if it were 1 (model.c) */
    bool has_elements = true;
    for (uint32_t d = 0; d < tensor.rank; d++) {
        if (tensor.shape[d] < min_size
            || __builtin_mul_overflow(count, tensor.shape[d] + (tensor.shape[d] == 0), &count)
            || count > MODEL_ELEMENTS_MAX)
            return DAMAGED("dimension %u of tensor %u is %lld", d, number, (long long)tensor.shape[d]);
        has_elements = has_elements && tensor.shape[d] > 0;
    }
    if (tensor.kind == MODEL_VIEW)
        return check_view(file, number, &tensor, has_elements);
    if (tensor.kind == MODEL_COMPUTED)
        return tensor.data_at == 0 && tensor.data_size == 0 ? VME_OK
                                                            : DAMAGED("tensor %u is computed, yet has data", number);
    if (tensor.kind != MODEL_CONSTANT)
        return DAMAGED("tensor %u is of the unknown kind %u", number, tensor.kind);
    if (tensor.data_size != (uint64_t)count * (uint64_t)vme_dtype_size((vme_dtype)tensor.dtype)
        || tensor.data_at % VME_ALIGNMENT != 0 || tensor.data_at > head->weights_size
        || tensor.data_size > head->weights_size - tensor.data_at)
        return DAMAGED("the data of tensor %u, %llu bytes at %llu, do not fit its shape or lie outside the weights",
                       number, (unsigned long long)tensor.data_size, (unsigned long long)tensor.data_at);
    return VME_OK;
}

static vme_status check_node(const model_file *file, uint32_t number, const header *head)
{
    model_node_record node = model_file_node(file, number);
    vme_status status = check_name(node.name_at, node.name_size, head->names_size, "node", number);
    if (status != VME_OK)
        return status;
    if (model_maker(node.op) == NULL)
        return DAMAGED("node %u has operator number %u, which this engine does not know", number, node.op);
    if (node.inputs < 1 || node.inputs > MODEL_NODE_INPUTS || node.outputs != 1 || node.first_operand > file->operands
        || node.inputs + node.outputs > file->operands - node.first_operand)
        return DAMAGED("the operands of node %u lie outside the list of operands", number);
    if (node.guard > file->guards)
        return DAMAGED("node %u has guard %u of %u", number, node.guard, file->guards);
    for (uint32_t i = 0; i < node.inputs + node.outputs; i++) {
        uint32_t operand = model_file_number(file->operand_list, node.first_operand + i);
        if (operand >= file->tensors && (operand != MODEL_ABSENT || i == 0 || i == node.inputs))
            return DAMAGED("operand %u of node %u is tensor %u of %u", i, number, operand, file->tensors);
    }
    return VME_OK;
}

/* Whether these terms are in the file and use only quotients before this one. */
static bool uses_earlier_quotients(const model_file *file, uint32_t first, uint32_t count, uint32_t quotient)
{
    bool earlier = first <= file->terms && count <= file->terms - first;
    for (uint32_t i = first; earlier && i < first + count; i++) {
        model_term_record term;
        memcpy(&term, file->term_list + i * sizeof term, sizeof term);
        for (uint32_t factor = 0; factor < MODEL_DEGREE_MAX; factor++)
            earlier = earlier && term.variables[factor] <= file->opens + quotient;
    }
    return earlier;
}

/* Checks open sizes and the numbers derived from them; their values are checked when a plan is made. */
static vme_status check_open(const model_file *file, const header *head)
{
    for (uint32_t i = 0; i < file->opens; i++) {
        model_open_record open;
        memcpy(&open, file->open_list + i * sizeof open, sizeof open);
        vme_status status = check_name(open.name_at, open.name_size, head->names_size, "open size", i);
        if (status != VME_OK)
            return status;
        if (open.input >= file->inputs
            || open.dimension >= model_file_tensor(file, model_file_number(file->input_list, open.input)).rank)
            return DAMAGED("open size %u is that of dimension %u of input %u, which does not exist", i, open.dimension,
                           open.input);
    }
    for (uint32_t i = 0; i < file->varyings; i++) {
        model_varying_record varying;
        memcpy(&varying, file->varying_list + i * sizeof varying, sizeof varying);
        vme_status status = check_name(varying.label_at, varying.label_size, head->names_size, "varying number", i);
        if (status != VME_OK)
            return status;
        if (varying.tensor >= file->tensors || varying.field >= FIELDS || varying.first_term > file->terms
            || varying.terms > file->terms - varying.first_term)
            return DAMAGED("varying number %u is number %u of tensor %u, of %u terms", i, varying.field, varying.tensor,
                           varying.terms);
        if (model_file_tensor(file, varying.tensor).kind == MODEL_CONSTANT)
            return DAMAGED("varying number %u is of tensor %u, a constant", i, varying.tensor);
    }
    for (uint32_t i = 0; i < file->terms; i++) {
        model_term_record term;
        memcpy(&term, file->term_list + i * sizeof term, sizeof term);
        for (uint32_t factor = 0; factor < MODEL_DEGREE_MAX; factor++)
            if (term.variables[factor] > file->opens + file->quotients)
                return DAMAGED("term %u has variable %u of %u", i, term.variables[factor],
                               file->opens + file->quotients);
    }
    for (uint32_t i = 0; i < file->quotients; i++) {
        const model_quotient_record quotient = model_file_quotient(file, i);
        if (!uses_earlier_quotients(file, quotient.first_numerator, quotient.numerators, i)
            || !uses_earlier_quotients(file, quotient.first_denominator, quotient.denominators, i))
            return DAMAGED("quotient %u has terms that do not exist, or later quotients", i);
    }
    for (uint32_t i = 0; i < file->needs; i++) {
        const model_need_record need = model_file_need(file, i);
        vme_status status = check_name(need.text_at, need.text_size, head->names_size, "need", i);
        if (status != VME_OK)
            return status;
        if (need.first_term > file->terms || need.terms > file->terms - need.first_term || need.at_least > 1)
            return DAMAGED("need %u has terms that do not exist, or the unknown kind %u", i, need.at_least);
    }
    return VME_OK;
}

static vme_status check_guards(const model_file *file)
{
    for (uint32_t i = 0; i < file->guards; i++) {
        const model_guard_record guard = model_file_guard(file, i);
        if (guard.tensor >= file->tensors || guard.side > 1 || guard.parent > i)
            return DAMAGED("guard %u is of tensor %u of %u, side %u and parent %u", i, guard.tensor, file->tensors,
                           guard.side, guard.parent);
    }
    return VME_OK;
}

size_t model_file_size(const void *bytes, size_t size)
{
    header head;
    if (size < 2 * sizeof head)
        return size;
    memcpy(&head, bytes, sizeof head);
    return head.file_size >= sizeof head && head.file_size < size ? (size_t)head.file_size : size;
}

vme_status model_file_read(const void *bytes, size_t size, bool of_plan, model_file *file)
{
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    return vme_fail(VME_UNSUPPORTED, "models run on little-endian machines only");
#endif
    header head;
    if (size < sizeof head)
        return DAMAGED("%zu bytes are less than its header", size);
    memcpy(&head, bytes, sizeof head);
    if (memcmp(head.magic, "VMEMODEL", sizeof head.magic) != 0)
        return DAMAGED("it does not begin with VMEMODEL; models are made by tools/compile_cloud.py");
    if (head.version != MODEL_VERSION)
        return DAMAGED("it has format %u, this engine reads format %d; compile it again", head.version, MODEL_VERSION);
    if (head.flags != (head.opens == 0 ? 0 : MODEL_FLAG_OPEN) || head.file_size != size)
        return DAMAGED("its header says %llu bytes, it has %zu", (unsigned long long)head.file_size, size);
    if (head.tensors > MODEL_TENSORS_MAX || head.nodes > MODEL_NODES_MAX || head.inputs > head.tensors
        || head.outputs > head.tensors || head.operands > MODEL_OPERANDS_MAX || head.names_size > MODEL_NAMES_MAX
        || head.inputs < 1 || head.outputs < 1 || head.opens > MODEL_OPEN_MAX
        || head.varyings > (head.opens == 0 ? 0 : MODEL_VARYING_MAX)
        || head.terms > (head.opens == 0 ? 0 : MODEL_TERMS_MAX)
        || head.quotients > (head.opens == 0 ? 0 : MODEL_QUOTIENTS_MAX)
        || head.opens + head.quotients > MODEL_VARIABLES_MAX || head.needs > (head.opens == 0 ? 0 : MODEL_NEEDS_MAX)
        || head.guards > MODEL_GUARDS_MAX)
        return DAMAGED(
            "%u tensors, %u nodes, %u inputs, %u outputs, %u operands, %u open sizes and %u quotients are not"
            " possible",
            head.tensors, head.nodes, head.inputs, head.outputs, head.operands, head.opens, head.quotients);
    if (head.notes_at > head.names_size || head.notes_size > head.names_size - head.notes_at)
        return DAMAGED("its notes lie outside the names");
    /* these sums cannot overflow: all counts are bounded above */
    uint64_t nodes = MODEL_HEADER + (uint64_t)head.tensors * sizeof(model_tensor_record);
    uint64_t inputs = nodes + (uint64_t)head.nodes * sizeof(model_node_record);
    uint64_t outputs = inputs + 4ull * head.inputs, operands = outputs + 4ull * head.outputs,
             opens = operands + 4ull * head.operands;
    uint64_t varyings = opens + (uint64_t)head.opens * sizeof(model_open_record);
    uint64_t terms = varyings + (uint64_t)head.varyings * sizeof(model_varying_record);
    uint64_t quotients = terms + (uint64_t)head.terms * sizeof(model_term_record);
    uint64_t needs = quotients + (uint64_t)head.quotients * sizeof(model_quotient_record);
    uint64_t guards = needs + (uint64_t)head.needs * sizeof(model_need_record);
    uint64_t names = guards + (uint64_t)head.guards * sizeof(model_guard_record);
    uint64_t weights = (names + head.names_size + VME_ALIGNMENT - 1) / VME_ALIGNMENT * VME_ALIGNMENT;
    if (weights > size || head.weights_size != size - weights)
        return DAMAGED("its parts make %llu bytes and %llu of weights, it has %zu", (unsigned long long)weights,
                       (unsigned long long)head.weights_size, size);
    const char *base = bytes;
    *file = (model_file){
        .tensors = head.tensors,
        .nodes = head.nodes,
        .inputs = head.inputs,
        .outputs = head.outputs,
        .operands = head.operands,
        .tensor_records = base + MODEL_HEADER,
        .node_records = base + nodes,
        .input_list = base + inputs,
        .output_list = base + outputs,
        .operand_list = base + operands,
        .names = base + names,
        .notes_at = head.notes_at,
        .notes_size = head.notes_size,
        .weights = base + weights,
        .opens = head.opens,
        .varyings = head.varyings,
        .terms = head.terms,
        .quotients = head.quotients,
        .needs = head.needs,
        .guards = head.guards,
        .open_list = base + opens,
        .varying_list = base + varyings,
        .term_list = base + terms,
        .quotient_list = base + quotients,
        .need_list = base + needs,
        .guard_list = base + guards,
    };
    vme_status status = VME_OK;
    for (uint32_t i = 0; status == VME_OK && i < file->tensors; i++)
        status = check_tensor(file, i, &head, of_plan);
    for (uint32_t i = 0; status == VME_OK && i < file->nodes; i++)
        status = check_node(file, i, &head);
    for (uint32_t i = 0; status == VME_OK && i < file->inputs + file->outputs; i++)
        if (model_file_number(file->input_list, i) >= file->tensors) /* the list of outputs follows directly */
            status =
                DAMAGED("an input or output is tensor %u of %u", model_file_number(file->input_list, i), file->tensors);
    if (status == VME_OK)
        status = check_guards(file);
    return status == VME_OK ? check_open(file, &head) : status;
}
