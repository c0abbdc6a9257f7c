// Prints what NVIDIA's occupancy calculator says, for `runtime/src/descriptions/occupancy.rs` to be compared with. The limits of devices are
// those of the table "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide (13.0), but for the most
// blocks of a multiprocessor, which the header knows.
//
//   source .ci/cuda-toolchain
//   g++ -I target/cuda-toolchain/nvidia/cu13/include runtime/tests/occupancy/table.cc -o target/tmp/table
//   target/tmp/table > runtime/tests/occupancy/cuda-13.0.88.txt

#include <cuda_occupancy.h>

#include <cstdio>
#include <initializer_list>

struct Row {
    int cc, threads;
    size_t shared, most_shared;
};

int main() {
    const Row devices[] = {
        {75, 1024, 64 << 10, 64 << 10},   {80, 2048, 164 << 10, 163 << 10},  {86, 1536, 100 << 10, 99 << 10},
        {87, 1536, 164 << 10, 163 << 10}, {89, 1536, 100 << 10, 99 << 10},   {90, 2048, 228 << 10, 227 << 10},
        {100, 2048, 228 << 10, 227 << 10}, {103, 2048, 228 << 10, 227 << 10}, {110, 1536, 228 << 10, 227 << 10},
        {120, 1536, 100 << 10, 99 << 10}, {121, 1536, 100 << 10, 99 << 10},
    };
    printf("# Made by table.cc from cuda_occupancy.h of CUDA 13.0.88.\n");
    printf("# device: compute capability; threads, blocks, registers, bytes of shared memory of a multiprocessor; those reserved in each block\n");
    printf("# below it: threads of a block, registers of a thread, bytes of shared memory of a block; blocks that a multiprocessor holds\n");
    for (const Row& row : devices) {
        cudaOccDeviceProp device;
        device.computeMajor = row.cc / 10;
        device.computeMinor = row.cc % 10;
        device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = row.threads;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536;
        device.warpSize = 32;
        device.sharedMemPerBlock = 48 << 10;
        device.sharedMemPerMultiprocessor = row.shared;
        device.numSms = 1;
        device.sharedMemPerBlockOptin = row.most_shared;
        device.reservedSharedMemPerBlock = row.cc >= 80 ? 1024 : 0;
        int most = 0;
        if (cudaOccMaxBlocksPerMultiprocessor(&most, &device)) return 1;
        printf("device %d %d %d %d %zu %zu\n", row.cc, row.threads, most, device.regsPerMultiprocessor, row.shared,
               device.reservedSharedMemPerBlock);
        for (int threads : {32, 128, 160, 256, 384, 512, 1024})
            for (int registers : {16, 31, 40, 64, 90, 128, 168, 255})
                for (int shared : {0, 9300, 40960, 208960}) {
                    if (size_t(shared) > row.most_shared) continue;
                    cudaOccFuncAttributes function;
                    function.maxThreadsPerBlock = 1024;
                    function.numRegs = registers;
                    function.sharedSizeBytes = 0;
                    function.partitionedGCConfig = PARTITIONED_GC_OFF;
                    function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
                    function.maxDynamicSharedSizeBytes = size_t(shared);
                    function.numBlockBarriers = 1;
                    cudaOccDeviceState state;
                    // As much shared memory as there is.
                    state.carveoutConfig = 100;
                    cudaOccResult result;
                    if (int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state, threads, size_t(shared))) {
                        fprintf(stderr, "%d: error %d\n", row.cc, error);
                        return 1;
                    }
                    printf("%d %d %d %d\n", threads, registers, shared, result.activeBlocksPerMultiprocessor);
                }
    }
    return 0;
}
