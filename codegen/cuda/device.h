// The vocabulary of generated CUDA code, and its only dependency.
//
// This file is pasted in front of every generated unit, so it includes nothing. nvcc and NVRTC compile it to PTX and
// machine code; g++ (C++17) compiles the same unit against an emulator that it is given before this file, in which
// every access is checked. Generated code uses the names below and no CUDA built-in.
//
// What is not the same for all architectures stands in parts: a unit has those whose names (GM_COPIES, GM_OVERLAP, GM_TENSOR, GM_HALVES, GM_FP4)
// it defines in front of this file. One without any is compiled once for all architectures from sm_70 on. The emulator has all parts.
//
// What holds on both sides:
// - A block has one dimension and a whole number of warps; a grid has three.
// - Warp operations (gm_shfl*, gm_ballot, gm_mma_*, gm_sync_warp) are called by all 32 lanes together.
// - f32 and f64 arithmetic is written with plain operators. Units are compiled with -fmad=false -prec-div=true
//   -prec-sqrt=true -ftz=false (nvcc, NVRTC) and -ffp-contract=off (g++), so that each operation rounds once, to
//   nearest even, as on the CPU. NaNs have no particular payload.
// - Integers are two's complement; u32 and u64 wrap, signed overflow is a mistake.

#ifndef GM_DEVICE_H
#define GM_DEVICE_H

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef float f32;
typedef double f64;

// Loaded and stored in one access; aligned to their size.
struct alignas(8) u32x2 { u32 x, y; };
struct alignas(16) u32x4 { u32 x, y, z, w; };
struct alignas(8) f32x2 { f32 x, y; };
struct alignas(16) f32x4 { f32 x, y, z, w; };

#define GM_CAT2(a, b) a##b
#define GM_CAT(a, b) GM_CAT2(a, b)

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// ---------------------------------------------------------------------------------------------- on the device

// GM_KERNEL(threads of a block) name(parameters) { ... } GM_EXPORT(name)
#define GM_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define GM_EXPORT(name)
// GM_KERNEL for a kernel that may take the registers it wants: left alone, ptxas spills some to fit more blocks.
#define GM_KERNEL_WIDE(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
// In front of a function that kernels call.
#define GM_DEVICE [[maybe_unused]] static __device__ __forceinline__
// In front of a loop whose arrays are to stay in registers.
#define GM_UNROLL _Pragma("unroll")
// In front of a loop whose rounds are to overlap, but not all of them.
#define GM_UNROLL_TWO _Pragma("unroll 2")
// In front of a loop that is run once as a rule.
#define GM_NO_UNROLL _Pragma("unroll 1")
// In front of a table: GM_CONSTANT u32 table[4] = {...}; read with plain indices.
#define GM_CONSTANT static __device__ __constant__ const
// A table that the threads of a warp read at different indices.
#define GM_TABLE static __device__ const
// GM_SHARED(type, name, count); in a kernel's outermost scope. Elements are read and written as name[i]; a function
// takes it as GM_SHARED_ARRAY(type).
#define GM_SHARED(T, name, count) __shared__ __align__(16) T name[count]
#define GM_SHARED_ARRAY(T) T*

GM_DEVICE u32 gm_thread() { return threadIdx.x; }
GM_DEVICE u32 gm_threads() { return blockDim.x; }
GM_DEVICE u32 gm_block() { return blockIdx.x; }
GM_DEVICE u32 gm_block_y() { return blockIdx.y; }
GM_DEVICE u32 gm_block_z() { return blockIdx.z; }
GM_DEVICE u32 gm_blocks() { return gridDim.x; }
GM_DEVICE u32 gm_blocks_y() { return gridDim.y; }
GM_DEVICE u32 gm_blocks_z() { return gridDim.z; }

// Memory that kernels of this launch may also write.
template <class T> GM_DEVICE T gm_load(const T* p) { return *p; }
template <class T> GM_DEVICE void gm_store(T* p, T v) { *p = v; }

// A V at byte i of bytes in global or shared memory, in one access; aligned to its size.
template <class V> GM_DEVICE V gm_read(const u8* bytes, u32 i) { return *(const V*)(bytes + i); }

// What a load says of memory that is not to be kept in L1; before sm_70 nothing.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#define GM_ONCE ""
#else
#define GM_ONCE ".L1::no_allocate"
#endif

// Memory that nobody writes during the launch, nor a kernel that it overlaps, and this block reads once: not kept in L1.
GM_DEVICE u8 gm_load_once(const u8* p) {
    u32 v;
    asm("ld.global.nc" GM_ONCE ".u8 %0, [%1];" : "=r"(v) : "l"(p));
    return (u8)v;
}
GM_DEVICE i8 gm_load_once(const i8* p) { return (i8)gm_load_once((const u8*)p); }
GM_DEVICE u16 gm_load_once(const u16* p) {
    u16 v;
    asm("ld.global.nc" GM_ONCE ".u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}
GM_DEVICE u32 gm_load_once(const u32* p) {
    u32 v;
    asm("ld.global.nc" GM_ONCE ".u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
GM_DEVICE i32 gm_load_once(const i32* p) { return (i32)gm_load_once((const u32*)p); }
GM_DEVICE f32 gm_load_once(const f32* p) {
    f32 v;
    asm("ld.global.nc" GM_ONCE ".f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}
GM_DEVICE u32x2 gm_load_once(const u32x2* p) {
    u32x2 v;
    asm("ld.global.nc" GM_ONCE ".v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
GM_DEVICE f32x2 gm_load_once(const f32x2* p) {
    f32x2 v;
    asm("ld.global.nc" GM_ONCE ".v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p));
    return v;
}
GM_DEVICE u32x4 gm_load_once(const u32x4* p) {
    u32x4 v;
    asm("ld.global.nc" GM_ONCE ".v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
GM_DEVICE f32x4 gm_load_once(const f32x4* p) {
    f32x4 v;
    asm("ld.global.nc" GM_ONCE ".v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    return v;
}

// Memory that kernels in front may have written, behind gm_wait_for_previous, and this block reads once: not kept in L1. Not by
// .nc, which is for memory that nobody writes while the kernel runs: one that overlaps runs beside those in front of it.
GM_DEVICE u32x4 gm_load_written(const u32x4* p) {
    u32x4 v;
    asm volatile("ld.global" GM_ONCE ".v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}

// A V that starts at element i of a shared array of narrower elements, in one access; aligned to sizeof(V).
template <class V, class T> GM_DEVICE V gm_shared_get(const T* array, u32 i) { return *(const V*)(array + i); }
template <class V, class T> GM_DEVICE void gm_shared_put(T* array, u32 i, V v) { *(V*)(array + i) = v; }

// An atomic or into element i of a shared array of u32.
GM_DEVICE void gm_shared_or(u32* array, u32 i, u32 v) { atomicOr(array + i, v); }

#ifdef GM_COPIES
// Starts a copy of a V of 4, 8 or 16 bytes, aligned to its size, from memory that nobody writes during the launch to
// element i of a shared array. gm_copy_commit ends a group of the thread's copies, which may be empty; gm_copy_wait<P>
// waits for all of the thread's groups but the last P. Other threads see what was copied behind a barrier after that.
// Before sm_80 the copy is made at once.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <class V, class T> GM_DEVICE void gm_copy(T* array, u32 i, const V* from) { *(V*)(array + i) = gm_load_once(from); }
GM_DEVICE void gm_copy_commit() {}
template <u32 PENDING> GM_DEVICE void gm_copy_wait() {}
#else
template <class V, class T> GM_DEVICE void gm_copy(T* array, u32 i, const V* from) {
    const u32 to = (u32)__cvta_generic_to_shared(array + i);
    if (sizeof(V) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" : : "r"(to), "l"(from), "n"(sizeof(V)) : "memory");
}
GM_DEVICE void gm_copy_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <u32 PENDING> GM_DEVICE void gm_copy_wait() { asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory"); }
#endif
#endif

#ifdef GM_OVERLAP
// A kernel that says gm_wait_for_previous is launched while the kernels in front of it still run (programmatic dependent
// launch; the PTX ISA's griddepcontrol). Until a thread has said so, it touches no memory but by gm_load_early and
// gm_prefetch_early, which are for what no kernel of the stream writes: weights. Every thread says it, before any return.
// gm_launch_next lets the kernel behind begin as early. Before sm_90 kernels run one after the other.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
GM_DEVICE void gm_wait_for_previous() {}
GM_DEVICE void gm_launch_next() {}
GM_DEVICE void gm_prefetch_early(const u8* p) {}
#else
GM_DEVICE void gm_wait_for_previous() { asm volatile("griddepcontrol.wait;" : : : "memory"); }
GM_DEVICE void gm_launch_next() { asm volatile("griddepcontrol.launch_dependents;" : : : "memory"); }
// The line of the L2 cache at p.
GM_DEVICE void gm_prefetch_early(const u8* p) { asm volatile("prefetch.global.L2 [%0];" : : "l"(p)); }
#endif
#endif
// Without .nc: ptxas lets loads of memory that never changes sink below the wait.
GM_DEVICE u32 gm_load_early(const u32* p) {
    u32 v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
GM_DEVICE u32x4 gm_load_early(const u32x4* p) {
    u32x4 v;
    asm volatile("ld.global" GM_ONCE ".v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

GM_DEVICE void gm_sync() { __syncthreads(); }
GM_DEVICE void gm_sync_warp() { __syncwarp(); }

#define GM_SHFL(name, instruction, clamp) \
    GM_DEVICE u32 name(u32 v, u32 lane) { \
        u32 r; \
        asm volatile("shfl.sync." instruction ".b32 %0, %1, %2, " clamp ", 0xffffffff;" : "=r"(r) : "r"(v), "r"(lane)); \
        return r; \
    } \
    GM_DEVICE i32 name(i32 v, u32 lane) { return (i32)name((u32)v, lane); } \
    GM_DEVICE f32 name(f32 v, u32 lane) { return __uint_as_float(name(__float_as_uint(v), lane)); } \
    GM_DEVICE u64 name(u64 v, u32 lane) { \
        u64 high = name((u32)(v >> 32), lane); \
        return high << 32 | name((u32)v, lane); \
    } \
    GM_DEVICE f64 name(f64 v, u32 lane) { \
        return __longlong_as_double((i64)name((u64)__double_as_longlong(v), lane)); \
    }
// The value of lane `lane`; of lane own ^ mask; of lane own + delta, or the own value beyond lane 31.
GM_SHFL(gm_shfl, "idx", "31")
GM_SHFL(gm_shfl_xor, "bfly", "31")
GM_SHFL(gm_shfl_down, "down", "31")
#undef GM_SHFL

// Bit i: whether lane i said true.
GM_DEVICE u32 gm_ballot(bool yes) { return __ballot_sync(0xffffffffu, yes); }

// Global memory; returns the old value.
GM_DEVICE u64 gm_atomic_min(u64* p, u64 v) { return atomicMin(p, v); }
GM_DEVICE u32 gm_atomic_max(u32* p, u32 v) { return atomicMax(p, v); }

// A counter in global memory goes up by one, and from `count` - 1 back to zero; returns what it was. Whoever counts later sees
// what this thread wrote before, and what others wrote before a barrier with it; its own warp does behind a gm_sync_warp, its
// block behind a gm_sync. What was written so is read by gm_load.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
GM_DEVICE u32 gm_count(u32* p, u32 count) {
    __threadfence();
    const u32 before = atomicInc(p, count - 1);
    __threadfence();
    return before;
}
#else
GM_DEVICE u32 gm_count(u32* p, u32 count) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(count - 1) : "memory");
    return before;
}
#endif

// c + sum of four products of bytes: unsigned by signed, signed by signed.
GM_DEVICE i32 gm_dp4a_us(u32 a, u32 b, i32 c) {
    i32 d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
GM_DEVICE i32 gm_dp4a_ss(u32 a, u32 b, i32 c) {
    i32 d;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

#ifdef GM_TENSOR
// c += a * b by one warp, a row by column; with g = lane / 4 and t = lane % 4:
//   16832: a[0] is row g, k 4t..4t+3 (low byte first); a[1] row g + 8; a[2], a[3] the same at k + 16;
//          b[0] is column g, k 4t..4t+3; b[1] the same at k + 16;
//          c[0], c[1] are row g, columns 2t and 2t + 1; c[2], c[3] row g + 8. Needs sm_80.
//   16816: a[0], a[1], b[0] and c as above, without k + 16. Needs sm_80.
//   8816:  a is row g, b column g, c[0], c[1] row g. Needs sm_75.
// Before sm_80 a 16832 is four of 8816, whose operands lie in the same lanes.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define GM_MMA(suffix, type) \
    GM_DEVICE void gm_mma_8816_##suffix(i32& c0, i32& c1, u32 a, u32 b) { \
        asm volatile("mma.sync.aligned.m8n8k16.row.col.s32." type ".s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};" \
            : "+r"(c0), "+r"(c1) : "r"(a), "r"(b)); \
    } \
    GM_DEVICE void gm_mma_8816_##suffix(i32 (&c)[2], u32 a, u32 b) { gm_mma_8816_##suffix(c[0], c[1], a, b); } \
    GM_DEVICE void gm_mma_16832_##suffix(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) { \
        gm_mma_8816_##suffix(c[0], c[1], a[0], b[0]); \
        gm_mma_8816_##suffix(c[2], c[3], a[1], b[0]); \
        gm_mma_8816_##suffix(c[0], c[1], a[2], b[1]); \
        gm_mma_8816_##suffix(c[2], c[3], a[3], b[1]); \
    }
#else
#define GM_MMA(suffix, type) \
    GM_DEVICE void gm_mma_16832_##suffix(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) { \
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." type ".s8.s32 " \
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    } \
    GM_DEVICE void gm_mma_16816_##suffix(i32 (&c)[4], const u32 (&a)[2], const u32 (&b)[1]) { \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.s32." type ".s8.s32 " \
            "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" \
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0])); \
    } \
    GM_DEVICE void gm_mma_8816_##suffix(i32 (&c)[2], u32 a, u32 b) { \
        asm volatile("mma.sync.aligned.m8n8k16.row.col.s32." type ".s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};" \
            : "+r"(c[0]), "+r"(c[1]) : "r"(a), "r"(b)); \
    }
#endif
// us: a unsigned, b signed; ss: both signed.
GM_MMA(us, "u8")
GM_MMA(ss, "s8")
#undef GM_MMA
#endif

#ifdef GM_FP4
// c += (a * scales of a) * (b * scales of b) by one warp, a row by column, where a register of a or b holds eight E2M1 (lowest
// bits first) and c is f32; with g = lane / 4 and t = lane % 4: a[0] is row g, k 8t..8t+7; a[1] row g + 8; a[2], a[3] the same
// at k + 32; b[0] is column g, k 8t..8t+7; b[1] the same at k + 32; c as above. A row of a has its scales in the register
// `a_scales` of one lane: row g of lane 4g + 2 a_pair, row g + 8 of the lane behind that; column g of b in `b_scales` of lane
// 4g + b_lane. What other lanes have there is not looked at. In which order and how precisely the products are added is the
// device's; docs/cuda.md has the bound. Needs sm_120a.
// e8m0: bytes `byte` (0 or 2) and `byte` + 1 are the scales of k 0..31 and 32..63, 2^(byte - 127) each; 255 is NaN.
// e4m3: byte i is the scale of k 16i..16i+15, e4m3 whose sign is 0; 0x7f is NaN. `byte` is 0.
#define GM_MMA(type, vector) \
    GM_DEVICE void gm_mma_16864_##type(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], u32 a_scales, u32 a_pair, u32 b_scales, u32 b_lane, u32 byte) { \
        asm volatile("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::" vector ".f32.e2m1.e2m1.f32.u" #type " " \
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {%12, %13}, {%11}, {%12, %14};" \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), \
              "r"(a_scales), "r"(b_scales), "h"((u16)byte), "h"((u16)a_pair), "h"((u16)b_lane)); \
    }
GM_MMA(e8m0, "2X")
GM_MMA(e4m3, "4X")
#undef GM_MMA
#endif

#ifdef GM_HALVES
// c += a * b by one warp, a row by column, where a register of a or b holds two numbers of two bytes (low half first) and c
// is f32; with g = lane / 4 and t = lane % 4: a[0] is row g, k 2t and 2t + 1; a[1] row g + 8; a[2], a[3] the same at k + 8;
// b[0] is column g, k 2t and 2t + 1; b[1] the same at k + 8; c as above. In which order and how precisely the products are
// added is the device's; docs/cuda.md has the bound. f16 needs sm_75 (there it is two steps of eight k), bf16 sm_80.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
GM_DEVICE void gm_mma_16816_f16(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[2]), "r"(a[3]), "r"(b[1]));
}
// Two numbers, rounded to nearest even, the first in the low half.
GM_DEVICE u32 gm_two_f16(f32 low, f32 high) {
    u32 two;
    asm("{.reg .f16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h};}"
        : "=r"(two) : "f"(low), "f"(high));
    return two;
}
#else
#define GM_MMA(type) \
    GM_DEVICE void gm_mma_16816_##type(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) { \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #type "." #type ".f32 " \
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    } \
    GM_DEVICE u32 gm_two_##type(f32 low, f32 high) { \
        u32 two; \
        asm("cvt.rn." #type "x2.f32 %0, %2, %1;" : "=r"(two) : "f"(low), "f"(high)); \
        return two; \
    }
GM_MMA(f16)
GM_MMA(bf16)
#undef GM_MMA
#endif
#endif

// a * b + c, rounded once.
GM_DEVICE f32 gm_fma(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }

GM_DEVICE u32 gm_bits(f32 x) { return __float_as_uint(x); }
GM_DEVICE f32 gm_float(u32 bits) { return __uint_as_float(bits); }
GM_DEVICE u64 gm_bits(f64 x) { return (u64)__double_as_longlong(x); }
GM_DEVICE f64 gm_double(u64 bits) { return __longlong_as_double((i64)bits); }
GM_DEVICE u32 gm_popc(u32 x) { return (u32)__popc(x); }

// Of finite numbers; of a number and NaN, the number; -0 is less than +0.
GM_DEVICE f32 gm_min(f32 a, f32 b) { return fminf(a, b); }
GM_DEVICE f32 gm_max(f32 a, f32 b) { return fmaxf(a, b); }
GM_DEVICE f32 gm_trunc(f32 x) { return truncf(x); }
GM_DEVICE f32 gm_floor(f32 x) { return floorf(x); }
GM_DEVICE f32 gm_rint(f32 x) { return rintf(x); }
GM_DEVICE f32 gm_sqrt(f32 x) { return sqrtf(x); }
GM_DEVICE f64 gm_sqrt(f64 x) { return sqrt(x); }

// Toward zero, saturating; NaN is 0.
GM_DEVICE i32 gm_to_i32(f32 x) { return __float2int_rz(x); }

GM_DEVICE f32 gm_number_f16_to_f32(u16 bits) {
    f32 x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
GM_DEVICE u16 gm_number_f32_to_f16(f32 x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

#else

// --------------------------------------------------------------------------------------------- in the emulator

#ifndef GM_EMULATOR
#error "without a CUDA compiler this file needs the emulator's header before it"
#endif

#define GM_KERNEL(threads) GM_EMULATOR_KERNEL(threads)
#define GM_KERNEL_WIDE(threads) GM_EMULATOR_KERNEL(threads)
#define GM_EXPORT(name) GM_EMULATOR_EXPORT(name)
#define GM_DEVICE [[maybe_unused]] static inline
#define GM_UNROLL
#define GM_UNROLL_TWO
#define GM_NO_UNROLL
#define GM_CONSTANT static const
#define GM_TABLE static const
#define GM_SHARED(T, name, count) GM_EMULATOR_SHARED(T, name, count)
#define GM_SHARED_ARRAY(T) gm_emulator::SharedArray<T>

#define GM_LINE int line = __builtin_LINE()

GM_DEVICE u32 gm_thread() { return gm_emulator::thread(); }
GM_DEVICE u32 gm_threads() { return gm_emulator::threads(); }
GM_DEVICE u32 gm_block() { return gm_emulator::block(); }
GM_DEVICE u32 gm_block_y() { return gm_emulator::block_y(); }
GM_DEVICE u32 gm_block_z() { return gm_emulator::block_z(); }
GM_DEVICE u32 gm_blocks() { return gm_emulator::blocks(); }
GM_DEVICE u32 gm_blocks_y() { return gm_emulator::blocks_y(); }
GM_DEVICE u32 gm_blocks_z() { return gm_emulator::blocks_z(); }

template <class T> GM_DEVICE T gm_load(const T* p, GM_LINE) { return gm_emulator::load(p, line); }
template <class T> GM_DEVICE T gm_load_once(const T* p, GM_LINE) { return gm_emulator::load_once(p, line); }
template <class T> GM_DEVICE T gm_load_written(const T* p, GM_LINE) { return gm_emulator::load(p, line); }
template <class T> GM_DEVICE void gm_store(T* p, T v, GM_LINE) { gm_emulator::store(p, v, line); }

template <class V> GM_DEVICE V gm_read(const u8* const& bytes, u32 i, GM_LINE) {
    return gm_emulator::load((const V*)(bytes + i), line);
}
template <class V, class A> GM_DEVICE V gm_read(const A& array, u32 i, GM_LINE) {
    return array.template get<V>(i, line);
}

template <class V, class A> GM_DEVICE V gm_shared_get(const A& array, u32 i, GM_LINE) {
    return array.template get<V>(i, line);
}
template <class V, class A> GM_DEVICE void gm_shared_put(const A& array, u32 i, V v, GM_LINE) {
    array.put(i, v, line);
}

template <class A> GM_DEVICE void gm_shared_or(const A& array, u32 i, u32 v, GM_LINE) {
    array.atomic_or(i, v, line);
}

template <class V, class A> GM_DEVICE void gm_copy(const A& array, u32 i, const V* from, GM_LINE) {
    array.copy(i, from, line);
}
GM_DEVICE void gm_copy_commit() { gm_emulator::commit_copies(); }
template <u32 PENDING> GM_DEVICE void gm_copy_wait() { gm_emulator::wait_copies(PENDING); }

GM_DEVICE void gm_wait_for_previous() { gm_emulator::wait_for_previous(); }
GM_DEVICE void gm_launch_next() {}
GM_DEVICE void gm_prefetch_early(const u8* p, GM_LINE) { gm_emulator::load_early(p, line); }
template <class T> GM_DEVICE T gm_load_early(const T* p, GM_LINE) { return gm_emulator::load_early(p, line); }

GM_DEVICE void gm_sync(GM_LINE) { gm_emulator::sync(line); }
GM_DEVICE void gm_sync_warp(GM_LINE) { gm_emulator::sync_warp(line); }

#define GM_SHFL(T) \
    GM_DEVICE T gm_shfl(T v, u32 lane, GM_LINE) { return gm_emulator::shfl(v, lane, line); } \
    GM_DEVICE T gm_shfl_xor(T v, u32 mask, GM_LINE) { return gm_emulator::shfl_xor(v, mask, line); } \
    GM_DEVICE T gm_shfl_down(T v, u32 delta, GM_LINE) { return gm_emulator::shfl_down(v, delta, line); }
GM_SHFL(u32)
GM_SHFL(i32)
GM_SHFL(f32)
GM_SHFL(u64)
GM_SHFL(f64)
#undef GM_SHFL

GM_DEVICE u32 gm_ballot(bool yes, GM_LINE) { return gm_emulator::ballot(yes, line); }
GM_DEVICE u64 gm_atomic_min(u64* p, u64 v, GM_LINE) { return gm_emulator::atomic_min(p, v, line); }
GM_DEVICE u32 gm_atomic_max(u32* p, u32 v, GM_LINE) { return gm_emulator::atomic_max(p, v, line); }
GM_DEVICE u32 gm_count(u32* p, u32 count, GM_LINE) { return gm_emulator::count(p, count, line); }

GM_DEVICE i32 gm_dp4a_us(u32 a, u32 b, i32 c, GM_LINE) { return gm_emulator::dp4a<u8>(a, b, c, line); }
GM_DEVICE i32 gm_dp4a_ss(u32 a, u32 b, i32 c, GM_LINE) { return gm_emulator::dp4a<i8>(a, b, c, line); }

#define GM_MMA(suffix, T) \
    GM_DEVICE void gm_mma_16832_##suffix(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], GM_LINE) { \
        gm_emulator::mma<T, 4, 4, 2>(c, a, b, line); \
    } \
    GM_DEVICE void gm_mma_16816_##suffix(i32 (&c)[4], const u32 (&a)[2], const u32 (&b)[1], GM_LINE) { \
        gm_emulator::mma<T, 4, 2, 1>(c, a, b, line); \
    } \
    GM_DEVICE void gm_mma_8816_##suffix(i32 (&c)[2], u32 a, u32 b, GM_LINE) { \
        const u32 as[1] = {a}, bs[1] = {b}; \
        gm_emulator::mma<T, 2, 1, 1>(c, as, bs, line); \
    }
GM_MMA(us, u8)
GM_MMA(ss, i8)
#undef GM_MMA
GM_DEVICE void gm_mma_16816_f16(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], GM_LINE) {
    gm_emulator::mma_halves(gm_emulator::Half::F16, c, a, b, line);
}
GM_DEVICE void gm_mma_16816_bf16(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], GM_LINE) {
    gm_emulator::mma_halves(gm_emulator::Half::Bf16, c, a, b, line);
}
#define GM_MMA(type, TYPE) \
    GM_DEVICE void gm_mma_16864_##type(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], u32 a_scales, u32 a_pair, u32 b_scales, u32 b_lane, u32 byte, GM_LINE) { \
        gm_emulator::mma_fp4({gm_emulator::Scale::TYPE, byte, a_pair, b_lane}, c, a, b, a_scales, b_scales, line); \
    }
GM_MMA(e8m0, E8m0)
GM_MMA(e4m3, E4m3)
#undef GM_MMA
#undef GM_LINE

GM_DEVICE f32 gm_fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }

GM_DEVICE u32 gm_bits(f32 x) { u32 r; __builtin_memcpy(&r, &x, 4); return r; }
GM_DEVICE f32 gm_float(u32 bits) { f32 r; __builtin_memcpy(&r, &bits, 4); return r; }
GM_DEVICE u64 gm_bits(f64 x) { u64 r; __builtin_memcpy(&r, &x, 8); return r; }
GM_DEVICE f64 gm_double(u64 bits) { f64 r; __builtin_memcpy(&r, &bits, 8); return r; }
GM_DEVICE u32 gm_popc(u32 x) { return (u32)__builtin_popcount(x); }

GM_DEVICE f32 gm_min(f32 a, f32 b) {
    if (a != a) return b;
    if (b != b) return a;
    return a < b || (a == b && gm_bits(a) > gm_bits(b)) ? a : b;
}
GM_DEVICE f32 gm_max(f32 a, f32 b) {
    if (a != a) return b;
    if (b != b) return a;
    return a > b || (a == b && gm_bits(a) < gm_bits(b)) ? a : b;
}
GM_DEVICE f32 gm_trunc(f32 x) { return __builtin_truncf(x); }
GM_DEVICE f32 gm_floor(f32 x) { return __builtin_floorf(x); }
// The emulator never leaves the default rounding mode.
GM_DEVICE f32 gm_rint(f32 x) { return __builtin_rintf(x); }
GM_DEVICE f32 gm_sqrt(f32 x) { return __builtin_sqrtf(x); }
GM_DEVICE f64 gm_sqrt(f64 x) { return __builtin_sqrt(x); }

GM_DEVICE i32 gm_to_i32(f32 x) {
    if (x != x) return 0;
    if (x >= 2147483648.0f) return 2147483647;
    if (x < -2147483648.0f) return -2147483647 - 1;
    return (i32)x;
}

GM_DEVICE f32 gm_number_f16_to_f32(u16 bits) {
    u32 magnitude = bits & 0x7fffu;
    // 2^112 moves an exponent of bias 15 to bias 127; a subnormal becomes normal on the way.
    f32 x = magnitude >= 0x7c00u ? gm_float(0x7f800000u) : gm_float(magnitude << 13) * 0x1p112f;
    return gm_float(gm_bits(x) | (bits & 0x8000u) << 16);
}
GM_DEVICE u16 gm_number_f32_to_f16(f32 x) {
    u32 sign = gm_bits(x) >> 16 & 0x8000u, magnitude = gm_bits(x) & 0x7fffffffu;
    if (magnitude >= 0x47800000u) return (u16)(sign | 0x7c00u);
    // Below the smallest normal number the sum with 1/2 leaves the rounded multiple of 2^-24 in the low bits.
    if (magnitude < 0x38800000u) return (u16)(sign | (gm_bits(gm_float(magnitude) + 0.5f) - 0x3f000000u));
    u32 half_way_down = 0xfffu + (magnitude >> 13 & 1u);
    return (u16)(sign | (magnitude - 0x38000000u + half_way_down) >> 13);
}

#endif

// ------------------------------------------------------------------------------------------------ on both sides

// Place in the warp, and the warp's place in the block.
GM_DEVICE u32 gm_lane() { return gm_thread() % 32u; }
GM_DEVICE u32 gm_warp() { return gm_thread() / 32u; }

GM_DEVICE i32 gm_min(i32 a, i32 b) { return a < b ? a : b; }
GM_DEVICE i32 gm_max(i32 a, i32 b) { return a > b ? a : b; }
GM_DEVICE u32 gm_min(u32 a, u32 b) { return a < b ? a : b; }
GM_DEVICE u32 gm_max(u32 a, u32 b) { return a > b ? a : b; }
GM_DEVICE u64 gm_min(u64 a, u64 b) { return a < b ? a : b; }
GM_DEVICE u64 gm_max(u64 a, u64 b) { return a > b ? a : b; }
GM_DEVICE f64 gm_max(f64 a, f64 b) { return a > b ? a : b; }

GM_DEVICE i32 gm_abs(i32 x) { return x < 0 ? -x : x; }
GM_DEVICE f32 gm_abs(f32 x) { return gm_float(gm_bits(x) & 0x7fffffffu); }
// |magnitude| with the sign of `sign`.
GM_DEVICE f32 gm_copysign(f32 magnitude, f32 sign) {
    return gm_float((gm_bits(magnitude) & 0x7fffffffu) | (gm_bits(sign) & 0x80000000u));
}
GM_DEVICE bool gm_is_finite(f32 x) { return (gm_bits(x) & 0x7f800000u) != 0x7f800000u; }
GM_DEVICE bool gm_is_finite(f64 x) { return (gm_bits(x) >> 52 & 0x7ffu) != 0x7ffu; }

// To the nearest integer, ties away from zero, ties toward zero. (gm_rint: ties to even.)
GM_DEVICE f32 gm_round(f32 x) {
    f32 whole = gm_trunc(x);
    return gm_abs(x - whole) >= 0.5f ? whole + gm_copysign(1.0f, x) : whole;
}
GM_DEVICE f32 gm_round_half_toward_zero(f32 x) {
    f32 whole = gm_trunc(x);
    return gm_abs(x - whole) > 0.5f ? whole + gm_copysign(1.0f, x) : whole;
}

// IEEE binary16; to nearest even, overflow gives an infinity, NaN keeps its top bits and becomes quiet.
GM_DEVICE f32 gm_f16_to_f32(u16 bits) {
    u32 sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude > 0x7c00u) return gm_float(sign | 0x7fc00000u | (magnitude & 0x3ffu) << 13);
    return gm_number_f16_to_f32(bits);
}
GM_DEVICE u16 gm_f32_to_f16(f32 x) {
    u32 bits = gm_bits(x), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (u16)((bits >> 16 & 0x8000u) | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    return gm_number_f32_to_f16(x);
}
// bfloat16.
GM_DEVICE f32 gm_bf16_to_f32(u16 bits) { return gm_float((u32)bits << 16); }
GM_DEVICE u16 gm_f32_to_bf16(f32 x) {
    u32 bits = gm_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40u);
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
#if !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
GM_DEVICE u32 gm_two_f16(f32 low, f32 high) { return (u32)gm_f32_to_f16(low) | (u32)gm_f32_to_f16(high) << 16; }
GM_DEVICE u32 gm_two_bf16(f32 low, f32 high) { return (u32)gm_f32_to_bf16(low) | (u32)gm_f32_to_bf16(high) << 16; }
#endif

#endif
