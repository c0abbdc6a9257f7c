
// Over all lanes of a warp, each of which gets the result: one instruction from sm_80 on, else five shuffles.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define GM_REDUCE(name, T, instruction, combined) \
    GM_DEVICE T name(T v) { \
        u32 r; \
        asm volatile("redux.sync." instruction " %0, %1, 0xffffffff;" : "=r"(r) : "r"((u32)v)); \
        return (T)r; \
    }
#else
#define GM_REDUCE(name, T, instruction, combined) \
    GM_DEVICE T name(T v) { \
        for (u32 mask = 16; mask > 0; mask /= 2) { \
            const T other = gm_shfl_xor(v, mask); \
            v = combined; \
        } \
        return v; \
    }
#endif
GM_REDUCE(gm_warp_max, u32, "max.u32", gm_max(v, other))
GM_REDUCE(gm_warp_min, u32, "min.u32", gm_min(v, other))
GM_REDUCE(gm_warp_sum, i32, "add.s32", v + other)
#undef GM_REDUCE

// GM_KERNEL for a kernel of which a multiprocessor is to have `blocks` blocks: ptxas takes no more registers than that allows.
#ifdef GM_EMULATOR
#define GM_KERNEL_OF(threads, blocks) GM_KERNEL(threads)
#else
#define GM_KERNEL_OF(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#endif

