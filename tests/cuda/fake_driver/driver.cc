// A libcuda.so.1 without a GPU: device memory is memory of the process, kernels run in the emulator.
//
// It is there to run an unmodified launch path: what a real driver would refuse is refused with its error code, what
// fails on a device asynchronously fails at the next synchronization and stays failed, and streams do their work no
// sooner than they must, so that a missing synchronization shows. GRISTMILL_GPU_FAKE sets what it pretends to be and
// which failures it injects; GRISTMILL_GPU_FAKE_UNITS names the folder of emulated units. At the process's end it
// says on stderr what was not given back.

#include "driver.h"

namespace fake {

thread_local void* current = nullptr;

void say(const char* format, ...) {
    va_list list;
    va_start(list, format);
    fputs("fake CUDA: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
}

const Settings& settings() {
    static const Settings made = [] {
        Settings s;
        const char* units = getenv("GRISTMILL_GPU_FAKE_UNITS");
        if (units) s.units = units;
        const char* text = getenv("GRISTMILL_GPU_FAKE");
        std::string words = text ? text : "";
        while (!words.empty()) {
            size_t comma = words.find(',');
            std::string word = words.substr(0, comma);
            words = comma == std::string::npos ? "" : words.substr(comma + 1);
            size_t equals = word.find('=');
            std::string name = word.substr(0, equals), value = equals == std::string::npos ? "" : word.substr(equals + 1);
            long long number = atoll(value.c_str());
            if (name.rfind("sm_", 0) == 0) {
                int cc = atoi(name.c_str() + 3);
                s.major = cc / 10, s.minor = cc % 10;
            } else if (name == "driver") s.driver = int(number);
            else if (name == "devices") s.devices = int(number);
            else if (name == "no_device") s.devices = 0;
            else if (name == "init") s.init = int(number);
            else if (name == "memory") s.memory = size_t(number);
            else if (name == "oom_after") s.oom_after = long(number);
            else if (name == "fail_launch") s.fail_launch = value;
            else if (name == "no_pools") s.pools = false;
            else if (name == "count") s.count = true;
            else if (name == "seed") s.seed = uint64_t(number);
            else if (name == "multiprocessors") s.multiprocessors = int(number);
            else if (!name.empty()) {
                say("GRISTMILL_GPU_FAKE has the unknown word `%s`", word.c_str());
                abort();
            }
        }
        return s;
    }();
    return made;
}

Driver& driver() {
    // Never destroyed: handles are given back by destructors of static objects too.
    static Driver* made = new Driver;
    return *made;
}

int usable() {
    if (!driver().initialized) return NOT_INITIALIZED;
    if (!current) return INVALID_CONTEXT;
    return driver().sticky;
}

// 0x1 and 0x2 are the names of the legacy stream and of the thread's own; both are one stream here.
Stream* stream_of(void* handle) {
    if (uintptr_t(handle) <= 2) return &driver().legacy;
    return static_cast<Stream*>(handle);
}

bool known(Stream* stream) { return stream == &driver().legacy || driver().streams.count(stream); }

int submit(Stream* stream, Operation operation) {
    if (!known(stream)) return INVALID_HANDLE;
    if (stream->capture) {
        stream->capture->operations.push_back(std::move(operation));
        return SUCCESS;
    }
    stream->queue.push_back(std::move(operation));
    stream->added++;
    return SUCCESS;
}

int run_until(Stream* stream, uint64_t done) {
    while (stream->done < done && !stream->queue.empty() && !driver().sticky) {
        Operation operation = std::move(stream->queue.front());
        stream->queue.pop_front();
        int error = operation();
        stream->done++;
        if (error) driver().sticky = error;
    }
    return driver().sticky;
}

int run_stream(Stream* stream) { return run_until(stream, stream->added); }

int run_all() {
    run_stream(&driver().legacy);
    for (Stream* stream : driver().streams) run_stream(stream);
    return driver().sticky;
}

int capturing_anything() {
    for (Stream* stream : driver().streams) {
        if (!stream->capture) continue;
        stream->capture->broken = true;
        return CAPTURE_UNSUPPORTED;
    }
    return SUCCESS;
}

void keep_at_most(uint64_t bytes) {
    driver().pool_reserved = std::max<uint64_t>(driver().in_use, std::min(driver().pool_reserved, bytes));
}

bool in_memory(uint64_t address, size_t bytes) {
    auto after = driver().memory.upper_bound(address);
    if (after == driver().memory.begin()) return false;
    --after;
    return !after->second.freed && address + bytes <= after->first + after->second.bytes;
}

namespace {

struct AtExit {
    ~AtExit() {
        Driver& d = driver();
        size_t kept = 0, bytes = 0;
        for (auto& [address, memory] : d.memory)
            if (!memory.freed) kept++, bytes += memory.bytes;
        if (kept) say("%zu allocations, %zu bytes, were not freed", kept, bytes);
        if (!d.host_memory.empty()) say("%zu allocations of host memory were not freed", d.host_memory.size());
        if (!d.modules.empty()) say("%zu modules were not unloaded", d.modules.size());
        if (!d.streams.empty()) say("%zu streams were not destroyed", d.streams.size());
        if (!d.events.empty()) say("%zu events were not destroyed", d.events.size());
        if (!d.graphs.empty() || !d.execs.empty())
            say("%zu graphs were not destroyed", d.graphs.size() + d.execs.size());
        if (settings().count)
            say("%llu kernels were launched, %llu of them to overlap with those in front, %llu with a grid of several layers",
                (unsigned long long)d.launches, (unsigned long long)d.overlapping, (unsigned long long)d.layered);
    }
} at_exit;

}  // namespace
}  // namespace fake

using namespace fake;

// ------------------------------------------------------------------------------------------------------ devices

GM_API cuInit(unsigned flags) {
    GM_LOCK;
    if (flags) return INVALID_VALUE;
    if (settings().init) return settings().init;
    if (settings().devices == 0) return NO_DEVICE;
    driver().initialized = true;
    return SUCCESS;
}
// NVRTC, if it is in the same process, looks for tables of the real driver.
GM_API cuGetExportTable(const void** table, const void*) { return *table = nullptr, NOT_FOUND; }
GM_API cuDriverGetVersion(int* version) { return *version = settings().driver, SUCCESS; }
GM_API cuDeviceGetCount(int* count) {
    GM_LOCK;
    if (!driver().initialized) return NOT_INITIALIZED;
    *count = settings().devices;
    return SUCCESS;
}
static int device_error(int device) {
    if (!driver().initialized) return NOT_INITIALIZED;
    return device < 0 || device >= settings().devices ? int(INVALID_DEVICE) : int(SUCCESS);
}
GM_API cuDeviceGet(int* device, int ordinal) {
    GM_LOCK;
    if (int error = device_error(ordinal)) return error;
    *device = ordinal;
    return SUCCESS;
}
GM_API cuDeviceGetName(char* name, int length, int device) {
    GM_LOCK;
    if (int error = device_error(device)) return error;
    snprintf(name, size_t(length), "Fake sm_%d%d", settings().major, settings().minor);
    return SUCCESS;
}
GM_API cuDeviceGetUuid_v2(void* uuid, int device) {
    GM_LOCK;
    if (int error = device_error(device)) return error;
    memset(uuid, 0xfa, 16);
    return SUCCESS;
}
GM_API cuDeviceGetUuid(void* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
GM_API cuDeviceTotalMem_v2(size_t* bytes, int device) {
    GM_LOCK;
    if (int error = device_error(device)) return error;
    *bytes = settings().memory;
    return SUCCESS;
}
GM_API cuDeviceGetAttribute(int* value, int attribute, int device) {
    GM_LOCK;
    if (int error = device_error(device)) return error;
    switch (attribute) {
        case 1: *value = 1024; break;               // threads of a block
        case 2: case 3: *value = 1024; break;       // block x, y
        case 4: *value = 64; break;                 // block z
        case 5: *value = 0x7fffffff; break;         // grid x
        case 6: case 7: *value = 65535; break;      // grid y, z
        case 8: *value = 48 * 1024; break;          // shared memory of a block
        case 9: *value = 64 * 1024; break;          // constant memory
        case 10: *value = 32; break;                // warp
        case 11: *value = 0x7fffffff; break;        // pitch
        case 12: *value = 65536; break;             // registers of a block
        case 13: *value = 1500000; break;           // clock, kHz
        case 16: *value = settings().multiprocessors; break;
        case 18: *value = 0; break;                 // integrated
        case 20: *value = 0; break;                 // compute mode: default
        case 31: *value = 1; break;                 // concurrent kernels
        case 33: case 34: *value = 0; break;        // PCI bus, device
        case 36: *value = 1000000; break;           // memory clock, kHz
        case 37: *value = 256; break;               // memory bus, bits
        case 38: *value = 4 << 20; break;           // L2
        case 39: *value = 2048; break;              // threads of a multiprocessor
        case 40: *value = 2; break;                 // copy engines
        case 41: *value = 1; break;                 // unified addressing
        case 75: *value = settings().major; break;  // compute capability
        case 76: *value = settings().minor; break;
        case 78: *value = 1; break;                 // stream priorities
        case 81: *value = int(shared_by_choice()) + 1024; break;  // shared memory of a multiprocessor
        case 82: *value = 65536; break;             // registers of a multiprocessor
        case 95: *value = 1; break;                 // cooperative launch
        case 97: *value = int(shared_by_choice()); break;         // shared memory of a block, by choice
        case 106: *value = 16; break;               // blocks of a multiprocessor
        case 115: *value = settings().pools; break; // memory pools
        default: *value = 0; break;
    }
    return SUCCESS;
}

// ----------------------------------------------------------------------------------------------------- contexts

static char contexts[64];
GM_API cuDevicePrimaryCtxRetain(void** context, int device) {
    GM_LOCK;
    if (int error = device_error(device)) return error;
    driver().retained++;
    *context = contexts + device;
    return driver().sticky;
}
GM_API cuDevicePrimaryCtxRelease_v2(int device) {
    GM_LOCK;
    if (int error = device_error(device)) return error;
    if (driver().retained == 0) return INVALID_CONTEXT;
    driver().retained--;
    return SUCCESS;
}
GM_API cuDevicePrimaryCtxSetFlags_v2(int device, unsigned) { return device_error(device); }
GM_API cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
    GM_LOCK;
    *flags = 0;
    *active = driver().retained > 0;
    return device_error(device);
}
GM_API cuCtxGetCurrent(void** context) { return *context = current, SUCCESS; }
GM_API cuCtxSetCurrent(void* context) { return current = context, SUCCESS; }
GM_API cuCtxGetDevice(int* device) {
    if (!current) return INVALID_CONTEXT;
    *device = int(static_cast<char*>(current) - contexts);
    return SUCCESS;
}
GM_API cuCtxSynchronize() {
    GM_USABLE;
    if (int error = capturing_anything()) return error;
    return run_all();
}
GM_API cuCtxSetFlags(unsigned) { return SUCCESS; }
GM_API cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0, SUCCESS; }

// ------------------------------------------------------------------------------------------------------- memory

static int allocate(uint64_t* address, size_t bytes) {
    Driver& d = driver();
    if (bytes == 0) return INVALID_VALUE;
    if (settings().oom_after >= 0 && d.allocations >= settings().oom_after) return OUT_OF_MEMORY;
    if (bytes > settings().memory || d.in_use > settings().memory - bytes) return OUT_OF_MEMORY;
    void* memory = nullptr;
    if (posix_memalign(&memory, 512, bytes)) return OUT_OF_MEMORY;
    // What nobody wrote is neither zero nor a usual number.
    memset(memory, 0xa5, bytes);
    char name[64];
    snprintf(name, sizeof name, "allocation %ld", d.allocations++);
    gm_emulator_allocate(memory, bytes, name, false, true);
    *address = uint64_t(memory);
    d.memory[*address] = Memory{bytes};
    d.in_use += bytes;
    d.most_in_use = std::max(d.most_in_use, d.in_use);
    d.pool_reserved = std::max(d.pool_reserved, d.in_use);
    d.pool_most_reserved = std::max(d.pool_most_reserved, d.pool_reserved);
    return SUCCESS;
}
static int release(uint64_t address) {
    Driver& d = driver();
    auto found = d.memory.find(address);
    if (found == d.memory.end()) {
        say("%#llx is freed, which no allocation begins at", (unsigned long long)address);
        return INVALID_VALUE;
    }
    d.in_use -= found->second.bytes;
    d.memory.erase(found);
    gm_emulator_free(reinterpret_cast<void*>(address));
    free(reinterpret_cast<void*>(address));
    return SUCCESS;
}

GM_API cuMemGetInfo_v2(size_t* unused, size_t* total) {
    GM_USABLE;
    *total = settings().memory;
    *unused = settings().memory - driver().in_use;
    return SUCCESS;
}
GM_API cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    GM_USABLE;
    if (int error = capturing_anything()) return error;
    return allocate(address, bytes);
}
GM_API cuMemFree_v2(uint64_t address) {
    GM_LOCK;
    if (!address) return SUCCESS;
    if (int error = capturing_anything()) return error;
    run_all();
    // Given back even after a failure, so that what is counted at the end is the program's doing.
    int error = release(address);
    return driver().sticky ? driver().sticky : error;
}
GM_API cuMemAllocAsync(uint64_t* address, size_t bytes, void* stream) {
    GM_USABLE;
    if (!settings().pools) return NOT_SUPPORTED;
    if (stream_of(stream)->capture) return CAPTURE_UNSUPPORTED;
    return allocate(address, bytes);
}
GM_API cuMemFreeAsync(uint64_t address, void* handle) {
    GM_LOCK;
    if (driver().sticky) return release(address), driver().sticky;
    auto found = driver().memory.find(address);
    if (found == driver().memory.end() || found->second.freed) return INVALID_VALUE;
    found->second.freed = true;
    Stream* stream = stream_of(handle);
    return submit(stream, [address] { return release(address); });
}
GM_API cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
    GM_USABLE;
    if (!bytes || posix_memalign(memory, 4096, bytes)) return INVALID_VALUE;
    driver().host_memory[*memory] = bytes;
    return SUCCESS;
}
GM_API cuMemFreeHost(void* memory) {
    GM_LOCK;
    run_all();
    if (!driver().host_memory.erase(memory)) return INVALID_VALUE;
    free(memory);
    return SUCCESS;
}

static int range_error(const char* what, uint64_t address, size_t bytes) {
    if (in_memory(address, bytes)) return SUCCESS;
    say("%s of %zu bytes at %#llx, which is not device memory as a whole", what, bytes, (unsigned long long)address);
    return INVALID_VALUE;
}
// A copy; of memory that nobody wrote it is told, and done.
static Operation copy(void* to, const void* from, size_t bytes) {
    return [=] {
        if (size_t unset = gm_emulator_unset(from, bytes))
            say("a copy of %zu bytes, of which %zu were never written", bytes, unset);
        memcpy(to, from, bytes);
        gm_emulator_written(to, bytes);
        return SUCCESS;
    };
}
static Operation fill(uint64_t to, unsigned value, size_t size, size_t count) {
    return [=] {
        char* memory = reinterpret_cast<char*>(to);
        for (size_t i = 0; i < count; i++) memcpy(memory + size * i, &value, size);
        gm_emulator_written(memory, size * count);
        return SUCCESS;
    };
}
GM_API cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
    GM_USABLE;
    if (int error = range_error("a copy to the device", to, bytes)) return error;
    // Memory that is not page-locked is read before the call returns; nobody may rely on more.
    auto staged = std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    return submit(stream_of(stream), [=] {
        memcpy(reinterpret_cast<void*>(to), staged->data(), bytes);
        gm_emulator_written(reinterpret_cast<void*>(to), bytes);
        return SUCCESS;
    });
}
GM_API cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
    if (int error = cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr)) return error;
    GM_LOCK;
    return run_stream(&driver().legacy);
}
GM_API cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* handle) {
    GM_USABLE;
    if (int error = range_error("a copy from the device", from, bytes)) return error;
    Stream* stream = stream_of(handle);
    if (int error = submit(stream, copy(to, reinterpret_cast<void*>(from), bytes))) return error;
    bool locked = false;
    for (auto& [memory, size] : driver().host_memory)
        locked = locked || (to >= memory && static_cast<char*>(to) + bytes <= static_cast<char*>(memory) + size);
    // Into pageable memory the call returns when the copy is done.
    return locked || stream->capture ? int(SUCCESS) : run_stream(stream);
}
GM_API cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
    if (int error = cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr)) return error;
    GM_LOCK;
    return run_stream(&driver().legacy);
}
GM_API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
    GM_USABLE;
    if (int error = range_error("a copy to the device", to, bytes)) return error;
    if (int error = range_error("a copy from the device", from, bytes)) return error;
    return submit(stream_of(stream), copy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes));
}
GM_API cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes) { return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr); }
GM_API cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, void* stream) {
    GM_USABLE;
    if (int error = range_error("a fill", to, count)) return error;
    return submit(stream_of(stream), fill(to, value, 1, count));
}
GM_API cuMemsetD8_v2(uint64_t to, unsigned char value, size_t count) { return cuMemsetD8Async(to, value, count, nullptr); }
GM_API cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void* stream) {
    GM_USABLE;
    if (int error = range_error("a fill", to, count * 4)) return error;
    return submit(stream_of(stream), fill(to, value, 4, count));
}

static char pool;
GM_API cuDeviceGetDefaultMemPool(void** found, int device) { return *found = &pool, device_error(device); }
GM_API cuDeviceGetMemPool(void** found, int device) { return *found = &pool, device_error(device); }
GM_API cuMemPoolSetAttribute(void*, int attribute, void* value) {
    GM_USABLE;
    if (attribute != POOL_RELEASE_THRESHOLD) return NOT_SUPPORTED;
    driver().pool_keeps = *static_cast<uint64_t*>(value);
    return SUCCESS;
}
GM_API cuMemPoolGetAttribute(void*, int attribute, void* value) {
    GM_USABLE;
    Driver& d = driver();
    uint64_t& out = *static_cast<uint64_t*>(value);
    switch (attribute) {
        case POOL_RELEASE_THRESHOLD: return out = d.pool_keeps, SUCCESS;
        case POOL_RESERVED: return out = d.pool_reserved, SUCCESS;
        case POOL_RESERVED_HIGH: return out = d.pool_most_reserved, SUCCESS;
        case POOL_USED: return out = d.in_use, SUCCESS;
        case POOL_USED_HIGH: return out = d.most_in_use, SUCCESS;
        default: return NOT_SUPPORTED;
    }
}
GM_API cuMemPoolTrimTo(void*, size_t keep) {
    GM_USABLE;
    return keep_at_most(keep), SUCCESS;
}
