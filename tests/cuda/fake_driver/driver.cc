// A libcuda.so.1 without a GPU: device memory is memory of the process, kernels run in the emulator.
//
// It is there to run an unmodified launch path: what a real driver would refuse is refused with its error code, what
// fails on a device asynchronously fails at the next synchronization and stays failed, and streams do their work no
// sooner than they must, so that a missing synchronization shows. GRISTMILL_GPU_FAKE sets what it pretends to be and
// which failures it injects; GRISTMILL_GPU_FAKE_UNITS names the folder of emulated units. At the process's end it
// says on stderr what was not given back.
//
// What it is strict about, beyond what a real driver tells: page-locked memory is read when a copy runs, not when it is
// enqueued; freed memory is given to nobody else, and an operation that still uses it fails; what a thread enqueues needs
// the context of the stream's device, freeing included; and no thread enqueues into another's capture. A test can hold a
// thread in front of each of its calls in turn (gm_fake_hold) and do something else there.

#include "driver.h"

namespace fake {

thread_local Device* current = nullptr;

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
        // Words for one device come behind those for all.
        std::vector<std::pair<int, std::string>> parsed, of_one;
        while (!words.empty()) {
            size_t comma = words.find(',');
            std::string word = words.substr(0, comma);
            words = comma == std::string::npos ? "" : words.substr(comma + 1);
            size_t colon = word.find(':');
            if (colon == std::string::npos) parsed.emplace_back(-1, word);
            else of_one.emplace_back(atoi(word.c_str()), word.substr(colon + 1));
        }
        parsed.insert(parsed.end(), of_one.begin(), of_one.end());
        for (auto& [device, word] : parsed) {
            int first = device < 0 ? 0 : device, last = device < 0 ? MOST_DEVICES : device + 1;
            auto each = [&](auto set) {
                for (int i = first; i < std::min(last, MOST_DEVICES); i++) set(s.of[i]);
            };
            size_t equals = word.find('=');
            std::string name = word.substr(0, equals), value = equals == std::string::npos ? "" : word.substr(equals + 1);
            long long number = atoll(value.c_str());
            if (name.rfind("sm_", 0) == 0) {
                int cc = atoi(name.c_str() + 3);
                each([&](Properties& p) { p.major = cc / 10, p.minor = cc % 10; });
            } else if (name == "memory") each([&](Properties& p) { p.memory = size_t(number); });
            else if (name == "multiprocessors") each([&](Properties& p) { p.multiprocessors = int(number); });
            else if (name == "temperature") each([&](Properties& p) { p.temperature = int(number); });
            else if (name == "throttle") each([&](Properties& p) { p.throttle = long(number); });
            else if (name == "registers") each([&](Properties& p) { p.registers = int(number); });
            else if (name == "clock") each([&](Properties& p) { p.clock = int(number); });
            else if (name == "lost_after") each([&](Properties& p) { p.lost_after = long(number); });
            else if (device >= 0) {
                say("GRISTMILL_GPU_FAKE has `%s` for one device, which is for all", word.c_str());
                abort();
            } else if (name == "driver") s.driver = int(number);
            else if (name == "devices") s.devices = int(number);
            else if (name == "no_device") s.devices = 0;
            else if (name == "init") s.init = int(number);
            else if (name == "oom_after") s.oom_after = long(number);
            else if (name == "fail_launch") s.fail_launch = value;
            else if (name == "refuse_code") s.refuse_code = int(number);
            else if (name == "refuse_ptx") s.refuse_ptx = true;
            else if (name == "no_pools") s.pools = false;
            else if (name == "coherent") s.coherent = true;
            else if (name == "held") s.held = true;
            else if (name == "count") s.count = true;
            else if (name == "nvml") s.nvml = true;
            else if (name == "timeline") s.timeline = true;
            else if (name == "pitch") s.pitch = size_t(number);
            else if (name == "too_many_peers") s.too_many_peers = true;
            else if (name == "seed") s.seed = uint64_t(number);
            else if (name == "lost_error") s.lost_error = int(number);
            else if (name == "peer") {
                int one = 0, other = 0;
                if (sscanf(value.c_str(), "%d-%d", &one, &other) == 2) s.peers.insert({{one, other}, {other, one}});
            }
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
    static Driver* made = [] {
        Driver* d = new Driver;
        for (Device& device : d->devices) device.calls_until_lost = settings().of[&device - d->devices].lost_after;
        return d;
    }();
    return *made;
}

int Device::index() const { return int(this - driver().devices); }

// As cuda.h says of them: no call of the context succeeds any more.
static bool is_sticky(int error) {
    for (int sticky : {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 722, 723, 810, 911})
        if (error == sticky) return true;
    return false;
}

int Device::called() {
    if (calls_until_failed >= 0 && calls_until_failed-- == 0) {
        failures++;
        calls_until_failed = calls_behind;
        calls_behind = -1;
        if (!sticky && !is_sticky(fails_with)) return fails_with;
        if (!sticky) sticky = fails_with;
    }
    if (calls_until_lost >= 0 && calls_until_lost-- == 0) {
        lost = true;
        if (!sticky) sticky = settings().lost_error;
    }
    return sticky;
}

int usable() {
    if (!driver().initialized) return NOT_INITIALIZED;
    if (!current || !current->retained) return INVALID_CONTEXT;
    return current->called();
}

static thread_local int calls_until_held = -1;
static std::atomic<bool> holding{false}, going{false};

void gate() {
    if (calls_until_held < 0 || calls_until_held-- > 0) return;
    holding = true;
    // Not for ever: this thread may hold a lock that the other one waits for.
    for (int i = 0; i < 60 && !going; i++) usleep(1000);
}

static std::atomic<bool> busy{false};

void until_idle() {
    // Not for ever: a test that fails lets nobody go.
    for (int i = 0; i < 50000 && busy; i++) usleep(100);
}

// 0x1 and 0x2 are the names of the legacy stream and of the thread's own; both are one stream here.
Stream* stream_of(void* handle) {
    if (uintptr_t(handle) <= 2) return &(current ? current : driver().devices)->legacy;
    return static_cast<Stream*>(handle);
}

bool known(Stream* stream) {
    for (Device& device : driver().devices)
        if (stream == &device.legacy) return true;
    return driver().streams.count(stream);
}

// Says when an operation would run.
static void place(Stream* stream, const Operation& operation) {
    if (operation.engine == Engine::NONE || !settings().timeline) return;
    Timeline& timeline = stream->device->timeline;
    bool computes = operation.engine == Engine::COMPUTE;
    long& engine = computes ? timeline.compute : timeline.copy;
    long begin = std::max({stream->ready, engine, timeline.process});
    engine = stream->ready = begin + (computes ? 100 : 60);
    fprintf(stderr, "fake timeline: stream %d %s %ld %ld\n", stream->number, operation.name, begin, engine);
}

int submit(Stream* stream, Operation operation) {
    if (!known(stream)) return INVALID_HANDLE;
    if (stream->device != current) {
        say("something is enqueued by a thread that has the context of another device, or none");
        return INVALID_CONTEXT;
    }
    if (stream->capture) {
        if (stream->capture->owner != std::this_thread::get_id())
            say("a thread enqueues into the capture of another");
        stream->capture->operations.push_back(std::move(operation));
        return SUCCESS;
    }
    place(stream, operation);
    stream->queue.push_back(std::move(operation));
    stream->added++;
    return SUCCESS;
}

int run_until(Stream* stream, uint64_t done) {
    int& sticky = stream->device->sticky;
    while (stream->done < done && !stream->queue.empty()) {
        Operation operation = std::move(stream->queue.front());
        stream->queue.pop_front();
        int error = sticky && !operation.frees ? 0 : operation.run();
        stream->done++;
        if (error && !sticky) sticky = error;
    }
    return sticky;
}

int run_stream(Stream* stream) { return run_until(stream, stream->added); }

int run_all() {
    if (!current) return INVALID_CONTEXT;
    run_stream(&current->legacy);
    for (Stream* stream : driver().streams)
        if (stream->device == current) run_stream(stream);
    return current->sticky;
}

int capturing_anything() {
    for (Stream* stream : driver().streams) {
        if (!stream->capture || stream->device != current) continue;
        if (stream->capture->owner != std::this_thread::get_id()) say("a thread breaks the capture of another");
        stream->capture->broken = true;
        return CAPTURE_UNSUPPORTED;
    }
    return SUCCESS;
}

int& capture_mode() {
    static thread_local int mode = 0;
    return mode;
}

bool is_refused_in_capture() {
    if (capture_mode() == 2) return false;
    bool refused = false;
    for (Stream* stream : driver().streams) {
        if (!stream->capture) continue;
        Graph& graph = *stream->capture;
        bool own = graph.owner == std::this_thread::get_id();
        if (own ? graph.mode == 2 : graph.mode != 0 || capture_mode() != 0) continue;
        if (!own) say("a thread breaks the capture of another");
        refused = graph.broken = true;
    }
    return refused;
}

void trim(Device* device) {
    device->pool->keep_at_most(device->pool->keeps);
    for (auto& [handle, pool] : device->pools) pool->keep_at_most(pool->keeps);
}

static const Memory* memory_at(uint64_t address, size_t bytes) {
    auto after = driver().memory.upper_bound(address);
    if (after == driver().memory.begin()) return nullptr;
    --after;
    return address + bytes <= after->first + after->second.bytes ? &after->second : nullptr;
}

bool in_memory(uint64_t address, size_t bytes) {
    const Memory* memory = memory_at(address, bytes);
    return memory && !memory->freed;
}

Device* owner_of(uint64_t address, size_t bytes) {
    const Memory* memory = memory_at(address, bytes);
    return memory ? memory->device : nullptr;
}

bool reaches(Device* device, uint64_t address) {
    const Memory* memory = memory_at(address, 1);
    if (!memory) return false;
    if (memory->device == device) return true;
    return memory->pool ? memory->pool->access.count(device) > 0 : device->peers.count(memory->device) > 0;
}

int alive(const char* what, uint64_t address, size_t bytes) {
    if (memory_at(address, bytes)) return SUCCESS;
    say("%s of %zu bytes at %#llx, which were freed before it ran", what, bytes, (unsigned long long)address);
    return ILLEGAL_ADDRESS;
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
        size_t pools = 0;
        for (Device& device : d.devices) pools += device.pools.size();
        if (pools) say("%zu memory pools were not destroyed", pools);
        if (!d.modules.empty()) say("%zu modules were not unloaded", d.modules.size());
        if (!d.streams.empty()) say("%zu streams were not destroyed", d.streams.size());
        if (!d.events.empty()) say("%zu events were not destroyed", d.events.size());
        if (!d.graphs.empty() || !d.execs.empty())
            say("%zu graphs were not destroyed", d.graphs.size() + d.execs.size());
        if (settings().count && !settings().peers.empty()) say("%llu copies between devices", (unsigned long long)d.peer_copies);
        if (settings().count)
            say("%llu kernels were launched, %llu of them to overlap with those in front, %llu with a grid of several layers",
                (unsigned long long)d.launches, (unsigned long long)d.overlapping, (unsigned long long)d.layered);
    }
} at_exit;

}  // namespace
}  // namespace fake

using namespace fake;

// --------------------------------------------------------------------------------------------------------- tests

// The calling thread stops in front of its call number `calls` from now on, until gm_fake_go, or for a short while.
extern "C" __attribute__((visibility("default"))) void gm_fake_hold(int calls) {
    holding = going = false;
    calls_until_held = calls;
}
// Whether it has come to that call.
extern "C" __attribute__((visibility("default"))) bool gm_fake_holds() { return holding; }
extern "C" __attribute__((visibility("default"))) void gm_fake_go() { going = true; }
// Devices do nothing that is enqueued until this is taken back; who waits for them does so meanwhile.
extern "C" __attribute__((visibility("default"))) void gm_fake_busy(bool are) { busy = are; }

// A device is lost in front of its call number `calls` from now on; below 0 it is whole again, in a context that is made then.
extern "C" __attribute__((visibility("default"))) void gm_fake_lose(int device, int calls) {
    GM_LOCK;
    Device& which = driver().devices[device];
    which.calls_until_lost = calls;
    if (calls < 0) which.lost = false;
}
// Whether it has come to that call.
extern "C" __attribute__((visibility("default"))) bool gm_fake_is_lost(int device) {
    GM_LOCK;
    return driver().devices[device].lost;
}

// Call number `calls` of a device from now on fails with this error, and call number `behind` from there on once more; where a context does not
// survive the error, so do all calls of the context, and a new one is whole. Below 0: none.
extern "C" __attribute__((visibility("default"))) void gm_fake_fail(int device, int calls, int behind, int error) {
    GM_LOCK;
    Device& which = driver().devices[device];
    which.calls_until_failed = calls;
    which.calls_behind = behind;
    which.fails_with = error;
    which.failures = 0;
}
// How many of these calls it has come to.
extern "C" __attribute__((visibility("default"))) int gm_fake_failures(int device) {
    GM_LOCK;
    return driver().devices[device].failures;
}
// Inverts all bits of the largest allocation of a device, as failing memory would; its bytes.
extern "C" __attribute__((visibility("default"))) uint64_t gm_fake_corrupt(int device) {
    GM_LOCK;
    std::pair<const uint64_t, Memory>* largest = nullptr;
    for (auto& each : driver().memory)
        if (each.second.device == driver().devices + device && (!largest || each.second.bytes > largest->second.bytes)) largest = &each;
    if (!largest) return 0;
    uint8_t* bytes = reinterpret_cast<uint8_t*>(largest->first);
    for (size_t i = 0; i < largest->second.bytes; i++) bytes[i] = uint8_t(~bytes[i]);
    return largest->second.bytes;
}

// ------------------------------------------------------------------------------------------------------ devices

GM_API cuInit(unsigned flags) {
    GM_LOCK;
    if (flags) return INVALID_VALUE;
    if (settings().init) return settings().init;
    if (settings().devices == 0) return NO_DEVICE;
    if (!driver().initialized && settings().held)
        for (Device& device : driver().devices) device.retained = 1;
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
int fake::device_error(int device) {
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
    snprintf(name, size_t(length), "Fake sm_%d%d", settings().of[device].major, settings().of[device].minor);
    return SUCCESS;
}
GM_API cuDeviceGetUuid_v2(void* uuid, int device) {
    GM_LOCK;
    if (int error = device_error(device)) return error;
    memset(uuid, 0xfa - device, 16);
    return SUCCESS;
}
GM_API cuDeviceGetUuid(void* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
GM_API cuDeviceTotalMem_v2(size_t* bytes, int device) {
    GM_LOCK;
    if (int error = device_error(device)) return error;
    *bytes = settings().of[device].memory;
    return SUCCESS;
}
GM_API cuDeviceGetAttribute(int* value, int attribute, int device) {
    GM_LOCK;
    if (int error = device_error(device)) return error;
    const Properties& properties = settings().of[device];
    switch (attribute) {
        case 1: *value = 1024; break;               // threads of a block
        case 2: case 3: *value = 1024; break;       // block x, y
        case 4: *value = 64; break;                 // block z
        case 5: *value = 0x7fffffff; break;         // grid x
        case 6: case 7: *value = 65535; break;      // grid y, z
        case 8: *value = 48 * 1024; break;          // shared memory of a block
        case 9: *value = 64 * 1024; break;          // constant memory
        case 10: *value = 32; break;                // warp
        case 11: *value = int(settings().pitch); break;  // pitch
        case 12: *value = 65536; break;             // registers of a block
        case 13: *value = properties.clock; break;  // kHz
        case 16: *value = properties.multiprocessors; break;
        case 18: *value = 0; break;                 // integrated
        case 20: *value = 0; break;                 // compute mode: default
        case 31: *value = 1; break;                 // concurrent kernels
        case 33: case 34: *value = device; break;   // PCI bus, device
        case 36: *value = 1000000; break;           // memory clock, kHz
        case 37: *value = 256; break;               // memory bus, bits
        case 38: *value = 4 << 20; break;           // L2
        case 39: *value = properties.threads_held(); break;  // threads of a multiprocessor
        case 40: *value = 2; break;                 // copy engines
        case 41: *value = 1; break;                 // unified addressing
        case 75: *value = properties.major; break;  // compute capability
        case 76: *value = properties.minor; break;
        case 78: *value = 1; break;                 // stream priorities
        case 81: *value = int(properties.shared_by_choice() + properties.shared_reserved()); break;  // shared memory of a multiprocessor
        case 82: *value = 65536; break;             // registers of a multiprocessor
        case 95: *value = 1; break;                 // cooperative launch
        case 97: *value = int(properties.shared_by_choice()); break;         // shared memory of a block, by choice
        case 106: *value = properties.blocks_held(); break;  // blocks of a multiprocessor
        case 111: *value = int(properties.shared_reserved()); break;         // shared memory that a block reserves
        case 115: *value = settings().pools; break; // memory pools
        default: *value = 0; break;
    }
    return SUCCESS;
}

// ----------------------------------------------------------------------------------------------------- contexts

GM_API cuDevicePrimaryCtxRetain(void** context, int device) {
    GM_LOCK;
    if (int error = device_error(device)) return error;
    int error = driver().devices[device].called();
    if (driver().devices[device].lost) return DEVICE_UNAVAILABLE;
    if (error && !driver().devices[device].sticky) return error;
    driver().devices[device].retained++;
    *context = driver().devices + device;
    return SUCCESS;
}
GM_API cuDevicePrimaryCtxRelease_v2(int device) {
    GM_LOCK;
    if (int error = device_error(device)) return error;
    Device& released = driver().devices[device];
    if (released.retained == 0) return INVALID_CONTEXT;
    // The last to let go destroys the context, and what it failed with. What is left in it is told at the end.
    if (--released.retained == 0) {
        released.sticky = SUCCESS;
        released.peers.clear();
    }
    return SUCCESS;
}

// What two devices can do is theirs; that one reaches the other's memory is asked for: of a context, or of a pool.
GM_API cuDeviceCanAccessPeer(int* can, int device, int peer) {
    GM_LOCK;
    if (int error = device_error(device)) return error;
    if (int error = device_error(peer)) return error;
    *can = settings().peers.count({device, peer}) > 0;
    return SUCCESS;
}
GM_API cuCtxEnablePeerAccess(void* peer, unsigned flags) {
    GM_USABLE;
    Device* other = static_cast<Device*>(peer);
    if (flags || other == current) return INVALID_VALUE;
    if (!other->retained) return INVALID_CONTEXT;
    if (int error = other->called()) return error;
    if (settings().too_many_peers) return TOO_MANY_PEERS;
    if (!settings().peers.count({current->index(), other->index()})) return PEER_ACCESS_UNSUPPORTED;
    return current->peers.insert(other).second ? int(SUCCESS) : int(PEER_ACCESS_ALREADY_ENABLED);
}
GM_API cuDevicePrimaryCtxSetFlags_v2(int device, unsigned) { return device_error(device); }
GM_API cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
    GM_LOCK;
    if (int error = device_error(device)) return error;
    *flags = 0;
    *active = driver().devices[device].retained > 0;
    return SUCCESS;
}
GM_API cuCtxGetCurrent(void** context) {
    gate();
    return *context = current, SUCCESS;
}
GM_API cuCtxSetCurrent(void* context) { return current = static_cast<Device*>(context), SUCCESS; }
GM_API cuCtxGetDevice(int* device) {
    if (!current) return INVALID_CONTEXT;
    *device = int(current - driver().devices);
    return SUCCESS;
}
GM_API cuCtxSynchronize() {
    GM_USABLE;
    if (int error = capturing_anything()) return error;
    return run_all();
}
GM_API cuCtxSetFlags(unsigned) { return SUCCESS; }
GM_API cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0, SUCCESS; }
