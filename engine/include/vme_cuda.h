/* The engine on an NVIDIA GPU: networks and embedding tables in GPU memory. It is a separate library, libvme_cuda.so
 * (`make cuda`), which engine/cuda/library.py opens for device="cuda". Nothing else depends on it.
 *
 * Every function that can fail returns a vme_cuda_status; vme_cuda_message() returns the message of the calling
 * thread's last failure. Objects of a device keep it alive. Any number of threads may use one device; only one thread
 * at a time may use a plan. */
#ifndef VME_CUDA_H
#define VME_CUDA_H

#include <stdint.h>

#define VME_CUDA_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

#define VME_CUDA_ABI          1
#define VME_CUDA_RANK         8
#define VME_CUDA_OPERANDS     8
#define VME_CUDA_INSTRUCTIONS 12

typedef enum vme_cuda_status {
    VME_CUDA_OK,
    VME_CUDA_NO_DEVICE,
    VME_CUDA_NO_MEMORY,
    VME_CUDA_BAD_VALUE,
    VME_CUDA_FAILED, /* an error of CUDA or cuBLAS */
} vme_cuda_status;

VME_CUDA_API int vme_cuda_abi(void);
VME_CUDA_API const char *vme_cuda_message(void);
VME_CUDA_API vme_cuda_status vme_cuda_count(int *devices);

/* ---- devices */
typedef struct vme_cuda_device vme_cuda_device;
/* memory_bytes: maximum GPU memory of the device's objects; 0: no limit. */
VME_CUDA_API vme_cuda_status vme_cuda_device_new(int number, int64_t memory_bytes, vme_cuda_device **device);
VME_CUDA_API void vme_cuda_device_unref(vme_cuda_device *device);
typedef struct vme_cuda_device_facts {
    char name[256];
    int64_t memory_bytes, free_bytes; /* of the GPU, now */
    int64_t used_bytes, limit_bytes;  /* of this device's objects; limit 0: none */
    int32_t multiprocessors, major, minor;
} vme_cuda_device_facts;
VME_CUDA_API vme_cuda_status vme_cuda_device_facts_of(vme_cuda_device *device, vme_cuda_device_facts *facts);

/* A queue of work for the GPU, executed in order. */
typedef struct vme_cuda_stream vme_cuda_stream;
VME_CUDA_API vme_cuda_status vme_cuda_stream_new(vme_cuda_device *device, vme_cuda_stream **stream);
VME_CUDA_API void vme_cuda_stream_unref(vme_cuda_stream *stream);

/* ---- embedding tables: as in vme_embedding.h, with all rows in GPU memory */
typedef struct vme_cuda_table vme_cuda_table;
typedef struct vme_cuda_table_options { /* as vme_embedding_options; no Bloom filter, no disk */
    int64_t dim;
    int32_t optimizer;
    int64_t filter_freq;
    float no_permission, slot_initial;
    int64_t steps_to_live;
    float l2_weight_threshold;
    int64_t default_rows;
    const float *defaults; /* copied */
    int64_t quota_bytes;
    uint64_t seed;
} vme_cuda_table_options;
VME_CUDA_API vme_cuda_status vme_cuda_table_new(vme_cuda_device *device, const vme_cuda_table_options *options,
                                                vme_cuda_table **table);
VME_CUDA_API void vme_cuda_table_unref(vme_cuda_table *table);
typedef struct vme_cuda_table_facts {
    int64_t rows, waiting, changed, bytes, step;
} vme_cuda_table_facts;
VME_CUDA_API void vme_cuda_table_facts_of(vme_cuda_table *table, vme_cuda_table_facts *facts);

typedef struct vme_cuda_bags { /* as vme_embedding_bags, in host memory */
    vme_cuda_table *table;
    int64_t ids_count;
    const int64_t *ids, *offsets; /* offsets: bags + 1 */
    const float *weights;         /* NULL: each is 1 */
    int64_t default_id;           /* below 0: zeros */
    int32_t combiner;
    float *dense; /* [bags, dim], rows `step` floats apart: the result of a lookup, or its gradient */
    int64_t step;
} vme_cuda_bags;
VME_CUDA_API vme_cuda_status vme_cuda_table_lookup(vme_cuda_table *table, int64_t n, const int64_t *ids, float *out);
/* All tables must be on one device. */
VME_CUDA_API vme_cuda_status vme_cuda_lookup_bags(int count, int64_t bag_count, const vme_cuda_bags *bags);

typedef struct vme_cuda_rates { /* as vme_embedding_rates */
    double learning_rate, eps, beta1, beta2, l1, l2, beta;
    int64_t updates, step;
} vme_cuda_rates;
/* A gradient step, as vme_embedding_update. gradients: [n, dim]. */
VME_CUDA_API vme_cuda_status vme_cuda_table_update(vme_cuda_table *table, const vme_cuda_rates *rates, int64_t n,
                                                   const int64_t *ids, const float *gradients);
/* `dense` of each set of bags is the gradient of its result. */
VME_CUDA_API vme_cuda_status vme_cuda_update_bags(int count, int64_t bag_count, const vme_cuda_bags *bags,
                                                  const vme_cuda_rates *rates);
VME_CUDA_API vme_cuda_status vme_cuda_table_evict(vme_cuda_table *table, int64_t step, int64_t *evicted);

/* The contents of tables at one moment. They are copied to host memory when the snapshot begins; then training may
 * continue. */
typedef struct vme_cuda_snapshot vme_cuda_snapshot;
VME_CUDA_API vme_cuda_status vme_cuda_snapshot_new(int count, vme_cuda_table *const *tables, int incremental,
                                                   vme_cuda_snapshot **snapshots);
VME_CUDA_API int64_t vme_cuda_snapshot_rows(const vme_cuda_snapshot *snapshot);
/* The next rows, at most `room`; *read 0: no more. values [room, dim], slots [room, slots * dim]. */
VME_CUDA_API vme_cuda_status vme_cuda_snapshot_read(vme_cuda_snapshot *snapshot, int64_t room, int64_t *keys,
                                                    int64_t *freqs, int64_t *versions, float *values, float *slots,
                                                    int64_t *read);
VME_CUDA_API vme_cuda_status vme_cuda_snapshot_waiting(vme_cuda_snapshot *snapshot, int64_t room, int64_t *keys,
                                                       int64_t *freqs, int64_t *versions, int64_t *read);
VME_CUDA_API void vme_cuda_snapshot_end(vme_cuda_snapshot *snapshot, int saved);
VME_CUDA_API vme_cuda_status vme_cuda_table_put(vme_cuda_table *table, int64_t n, const int64_t *keys,
                                                const int64_t *freqs, const int64_t *versions, const float *values,
                                                const float *slots);
VME_CUDA_API vme_cuda_status vme_cuda_table_put_waiting(vme_cuda_table *table, int64_t n, const int64_t *keys,
                                                        const int64_t *freqs, const int64_t *versions);

/* ---- networks */
/* A network's constants in GPU memory. */
typedef struct vme_cuda_weights vme_cuda_weights;
VME_CUDA_API vme_cuda_status vme_cuda_weights_new(vme_cuda_device *device, const void *bytes, int64_t size,
                                                  vme_cuda_weights **weights);
VME_CUDA_API void vme_cuda_weights_unref(vme_cuda_weights *weights);

typedef enum vme_cuda_space { VME_CUDA_ARENA, VME_CUDA_WEIGHTS, VME_CUDA_ABSENT } vme_cuda_space;
typedef struct vme_cuda_operand {
    int32_t space, reserved;
    int64_t offset;                 /* bytes */
    int64_t strides[VME_CUDA_RANK]; /* elements, for each dimension of the step's shape */
} vme_cuda_operand;

/* The result of an instruction for the current value x and an operand y. */
typedef enum vme_cuda_function {
    VME_CUDA_LOAD, /* y */
    VME_CUDA_ADD,
    VME_CUDA_SUBTRACT,      /* x - y */
    VME_CUDA_SUBTRACT_FROM, /* y - x */
    VME_CUDA_MULTIPLY,
    VME_CUDA_DIVIDE,    /* x / y */
    VME_CUDA_DIVIDE_BY, /* y / x */
    VME_CUDA_MAXIMUM,
    VME_CUDA_MINIMUM,
    VME_CUDA_CLIP, /* this and the following functions use x only */
    VME_CUDA_NEGATIVE,
    VME_CUDA_ABSOLUTE,
    VME_CUDA_SQUARE,
    VME_CUDA_SQRT,
    VME_CUDA_RECIPROCAL,
    VME_CUDA_EXP,
    VME_CUDA_LOG,
    VME_CUDA_TANH,
    VME_CUDA_ERF,
    VME_CUDA_RELU,
    VME_CUDA_GELU,
    VME_CUDA_GELU_TANH,
    VME_CUDA_SIGMOID,
    VME_CUDA_SILU,
    VME_CUDA_MISH,
    VME_CUDA_HARD_SIGMOID,
    VME_CUDA_HARD_SWISH,
    VME_CUDA_FUNCTIONS
} vme_cuda_function;
typedef struct vme_cuda_instruction {
    int32_t function;
    int32_t operand; /* index of an operand, or -1 */
    float low, high; /* of VME_CUDA_CLIP */
} vme_cuda_instruction;

typedef enum vme_cuda_op {
    /* operand 0 = the instructions' result, elementwise. `together`: this step and the following ones, as many as this
     * number, are one launch; none of them may read the result of another. */
    VME_CUDA_MAP,
    /* operand 0 = the reduction, over the dimensions whose bit is set in `reduced`, of the results of the first
     * `before` instructions. The other instructions apply to the reduced value; their operands and operand 0 have
     * strides 0 in the reduced dimensions. */
    VME_CUDA_REDUCE,
    /* operand 0 [batch, m, n] = activation(a [batch, m, k] @ b [batch, k, n] + bias [n]); shape: batch, m, n, k.
     * Strides of operands: batch, row, column. One of row and column is 1; for operand 0, column. */
    VME_CUDA_PRODUCT,
    /* operand 0 [rows, n] = softmax(operand 1 * low + operand 2, which may be absent) of rows */
    VME_CUDA_SOFTMAX,
    VME_CUDA_OPS
} vme_cuda_op;
enum { VME_CUDA_SUM, VME_CUDA_PROD, VME_CUDA_MAX, VME_CUDA_MIN };
typedef struct vme_cuda_step {
    int32_t op, rank;
    int64_t shape[VME_CUDA_RANK];
    int32_t operand_count, instruction_count, before, together, reduction, reduced;
    float low;
    int32_t reserved;
    vme_cuda_operand operands[VME_CUDA_OPERANDS];
    vme_cuda_instruction instructions[VME_CUDA_INSTRUCTIONS];
} vme_cuda_step;

/* A lookup that writes its results to the arena. */
typedef struct vme_cuda_lookup {
    vme_cuda_table *table;
    int64_t offset, step; /* offset of the results in the arena, in bytes; floats between them */
    int64_t default_id;
    int32_t combiner, weighted;
    int64_t ids_room; /* maximum ids of a run */
} vme_cuda_lookup;

enum {
    VME_CUDA_GRAPH = 1, /* lookups and steps are captured once and launched as one graph */
    VME_CUDA_FUSED = 2, /* bias and activation are part of a product, or one launch; otherwise one launch each */
    VME_CUDA_MERGED_COPIES = 4, /* all inputs are one copy; otherwise each input is one */
    VME_CUDA_COPY_STREAM = 8,   /* copies to the GPU run on a stream that all plans of the device share */
};
typedef struct vme_cuda_ports { /* regions of the arena, in bytes; inputs and outputs each in ascending order */
    int32_t inputs, outputs;
    const int64_t *input_offsets, *input_bytes, *output_offsets, *output_bytes;
} vme_cuda_ports;
typedef struct vme_cuda_plan vme_cuda_plan;
/* A network at one set of sizes: its arena, pinned buffers and graph. Lookups run before the steps. */
VME_CUDA_API vme_cuda_status vme_cuda_plan_new(vme_cuda_device *device, vme_cuda_stream *stream,
                                               vme_cuda_weights *weights, int flags, int64_t arena_bytes,
                                               const vme_cuda_ports *ports, int step_count, const vme_cuda_step *steps,
                                               int lookup_count, const vme_cuda_lookup *lookups, int64_t bag_count,
                                               vme_cuda_plan **plan);
VME_CUDA_API void vme_cuda_plan_unref(vme_cuda_plan *plan);
/* The pinned memory of an input. May be written between runs. */
VME_CUDA_API void *vme_cuda_plan_input(vme_cuda_plan *plan, int number);
VME_CUDA_API int vme_cuda_plan_launches(const vme_cuda_plan *plan); /* kernels and products of a run */
/* inputs: one pointer for each; the data is copied to the pinned memory. NULL: the pinned memory already has it. bags:
 * one for each lookup, whose `dense` is ignored. */
VME_CUDA_API vme_cuda_status vme_cuda_plan_run(vme_cuda_plan *plan, const void *const *inputs, void *const *outputs,
                                               const vme_cuda_bags *bags);

#ifdef __cplusplus
}
#endif
#endif
