// What the parts of the fake driver share: configuration, streams and their queues, device memory, errors.

#ifndef GM_FAKE_DRIVER
#define GM_FAKE_DRIVER

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

#define GM_API extern "C" __attribute__((visibility("default"))) int

extern "C" {
void gm_emulator_allocate(const void* memory, size_t bytes, const char* name, bool read_only, bool unset);
void gm_emulator_written(const void* memory, size_t bytes);
size_t gm_emulator_unset(const void* memory, size_t bytes);
bool gm_emulator_free(const void* memory);
int gm_emulator_launch(const gm_emulator::Kernel* which, uint32_t blocks_x, uint32_t blocks_y, uint32_t blocks_z,
                       uint32_t threads, uint32_t shared, void** values, bool overlaps, uint64_t seed, char* text,
                       size_t capacity);
}

namespace fake {

// CUresult, as far as it is used.
enum : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    DEVICE_UNAVAILABLE = 46,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    TOO_MANY_PEERS = 711,
    MISALIGNED_ADDRESS = 716,
    LAUNCH_FAILED = 719,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_IMPLICIT = 906,
};

// What a device pretends to be. A word with a device's number in front is for that one: "devices=2,sm_80,1:sm_90".
struct Properties {
    int major = 9, minor = 0;   // sm_90
    size_t memory = 8ull << 30; // memory=BYTES
    int multiprocessors = 4;    // multiprocessors=N
    int clock = 1500000;        // clock=KHZ
    long lost_after = -1;       // lost_after=N: calls that it answers before it is lost
    int temperature = -1;       // temperature=DEGREES: what NVML says; below 0: nothing
    long throttle = 0;          // throttle=BITS: nvmlClocksThrottleReasons
    int registers = 32;         // registers=N: of a thread of every kernel
    // What a multiprocessor has, by compute capability.
    bool large() const { return major == 8 ? minor == 0 : major == 9 || major == 10; }
    int threads_held() const { return major == 7 ? 1024 : large() ? 2048 : 1536; }
    int blocks_held() const { return large() ? 32 : major == 7 || (major == 8 && minor < 9) ? 16 : 24; }
    // Bytes of shared memory of a block, for those who ask for more than 48 KiB.
    uint32_t shared_by_choice() const {
        return 1024 * (major == 7 ? 64 : major == 9 || major == 10 || major == 11 ? 227 : major == 8 && (minor == 0 || minor == 7) ? 163 : 99);
    }
    // What each block takes of it for the driver.
    uint32_t shared_reserved() const { return major == 7 ? 0 : 1024; }
};

const int MOST_DEVICES = 16;

// What GRISTMILL_GPU_FAKE says: words with commas between, for example "sm_80,driver=12020,fail_launch=gemv".
struct Settings {
    Properties of[MOST_DEVICES];
    // peer=I-J: these two reach each other's memory.
    std::set<std::pair<int, int>> peers;
    int lost_error = 214;       // lost_error=N: what calls of a lost device give
    int driver = 13000;         // driver=N: what cuDriverGetVersion gives
    int devices = 1;            // devices=N, no_device
    int init = SUCCESS;         // init=N: what cuInit gives
    long oom_after = -1;        // oom_after=N: allocations that succeed
    std::string fail_launch;    // fail_launch=NAME: launches of this kernel fail while they run
    int refuse_code = 0;        // refuse_code=80: machine code for this architecture is not taken
    bool refuse_ptx = false;    // refuse_ptx: the driver's compiler takes no PTX, and says so in its log
    bool pools = true;          // no_pools: no cuMemAllocAsync
    bool coherent = false;      // coherent: the device reads ordinary memory of the process itself, whenever it comes to it
    size_t pitch = 0x7fffffff;  // pitch=BYTES: the most that rows of a copy may be apart
    bool too_many_peers = false; // too_many_peers: no context reaches another one any more, whatever the devices can do
    bool held = false;          // held: another library of the process holds the primary contexts
    bool nvml = false;          // nvml: the management library is there
    bool count = false;         // count: says at the end how many kernels were launched
    bool timeline = false;      // timeline: says when each kernel and copy to the device would run: see `Timeline`
    uint64_t seed = 1;          // seed=N: order of threads and blocks
    std::string units;          // folder of emulated units: GRISTMILL_GPU_FAKE_UNITS
};
const Settings& settings();

// What an operation keeps busy.
enum class Engine { NONE, COMPUTE, COPY };

// An operation of a stream: 0, or the error that it stops its device with.
struct Operation {
    std::function<int()> run;
    // Done also after a failure, so that what is counted at the end is the program's doing.
    bool frees = false;
    Engine engine = Engine::NONE;
    const char* name = "";
};

// When operations would run on a device with one engine for kernels, of which each takes 100, and one for copies from page-locked
// memory, of which each takes 60: behind what is in front of them on their stream and on their engine, behind events that the
// stream waits for, and not before they are enqueued. The process takes no time but where it waits.
struct Timeline {
    long compute = 0, copy = 0, process = 0;
};

struct Graph {
    std::vector<Operation> operations;
    bool broken = false;
    // CUstreamCaptureMode: global (0), of the thread (1) or relaxed (2).
    int mode = 0;
    // Who captures.
    std::thread::id owner = std::this_thread::get_id();
};

struct Device;

// What a pool keeps when nothing uses it, and what it has taken from the device, in bytes.
struct Pool {
    uint64_t keeps = 0, reserved = 0, most_reserved = 0, used = 0, most_used = 0;
    // Other devices that reach what is taken from it.
    std::set<Device*> access;
    // Gives back what is not used, beyond `bytes`.
    void keep_at_most(uint64_t bytes) { reserved = std::max(used, std::min(reserved, bytes)); }
};

struct Stream {
    explicit Stream(Device* device) : device(device) {}
    Device* device;
    std::deque<Operation> queue;
    // Where operations go instead while this stream is being captured.
    std::shared_ptr<Graph> capture;
    bool capture_origin = false;
    // Operations added and done, since the stream was made.
    uint64_t added = 0, done = 0;
    // Its place among those that were made, and when it has done what is enqueued.
    int number = 0;
    long ready = 0;
};

struct Event {
    unsigned flags = 0;
    Stream* stream = nullptr;
    // The stream's `done` from which the last record has happened.
    uint64_t at = 0;
    double seconds = 0;
    // When it is reached.
    long ready = 0;
    std::shared_ptr<Graph> capture;
};

struct Function {
    std::string name;
    const gm_emulator::Kernel* kernel;
    struct Module* module;
    // Shared memory that a launch may give, in bytes.
    uint32_t may_give = 48 * 1024;
};

struct Module {
    Device* device;
    void* unit = nullptr;
    std::string image;
    std::map<std::string, std::unique_ptr<Function>> functions;
};

struct Memory {
    size_t bytes;
    Device* device;
    // Where it goes back to; null for none.
    std::shared_ptr<Pool> pool;
    // Given back on a stream: no operation that is added later may use it.
    bool freed = false;
};

// A device and its primary context.
struct Device {
    int retained = 0;
    // What its context failed with.
    int sticky = SUCCESS;
    // Lost for good, whatever becomes of its context; calls until then, below 0: never.
    bool lost = false;
    long calls_until_lost = -1;
    // Calls until one fails, and from there until a second one does, below 0: none does; with what error, and how many did.
    long calls_until_failed = -1, calls_behind = -1;
    int fails_with = SUCCESS, failures = 0;
    // Devices whose memory its context reaches, but for that of pools.
    std::set<Device*> peers;
    int index() const;
    const Properties& properties() const { return settings().of[index()]; }
    // Counts a call; what its context failed with.
    int called();
    Stream legacy{this};
    size_t in_use = 0;
    Timeline timeline;
    std::shared_ptr<Pool> pool = std::make_shared<Pool>();
    // Those that were made for it, by their handles.
    std::map<Pool*, std::shared_ptr<Pool>> pools;
};

// The whole driver; one lock around every call.
struct Driver {
    std::recursive_mutex lock;
    bool initialized = false;
    Device devices[MOST_DEVICES];
    std::set<Stream*> streams;
    std::set<Event*> events;
    std::set<Module*> modules;
    std::set<std::shared_ptr<Graph>*> graphs, execs;
    std::map<uint64_t, Memory> memory;
    std::map<void*, size_t> host_memory;
    // Freed, and given to nobody else, so that whoever still uses it is told.
    std::deque<std::pair<uint64_t, size_t>> freed;
    size_t freed_bytes = 0;
    long allocations = 0;
    int streams_made = 0;
    uint64_t launches = 0, overlapping = 0, layered = 0, peer_copies = 0;
};
Driver& driver();
// The thread's context, which is its device.
extern thread_local Device* current;

void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
// 0 if the driver is initialized, a context is current and nothing failed before; else the error.
int usable();
Stream* stream_of(void* handle);
bool known(Stream* stream);
// Queues an operation, or puts it into the graph that is being captured.
int submit(Stream* stream, Operation operation);
// Does what is queued.
int run_until(Stream* stream, uint64_t done);
int run_stream(Stream* stream);
int run_all();
// Whether a range lies in memory that is allocated.
bool in_memory(uint64_t address, size_t bytes);
// The device that a range belongs to as a whole; null for none.
Device* owner_of(uint64_t address, size_t bytes);
// Whether a device reaches such memory: its own, or that of a peer to which access was given.
bool reaches(Device* device, uint64_t address);
int device_error(int device);
int capturing_anything();
// What a thread that captures may call besides: global (0), thread-local or relaxed (2).
int& capture_mode();
// Whether a call that no graph holds, and that may wait, is refused: to a thread that captures, and to all while one captures in the global
// mode, but for those who have said that they may call it all the same. Where it is refused the captures are broken.
bool is_refused_in_capture();
// Whether an operation may use a range when it runs: it was not freed in front of it.
int alive(const char* what, uint64_t address, size_t bytes);
// What a device's pools do when it is waited for.
void trim(Device* device);
// In front of a call that a test wants to hold: see gm_fake_hold.
void gate();
// Waits as long as devices are kept busy: see gm_fake_busy. Not under the driver's lock.
void until_idle();

// CUmemPool_attribute.
enum : int { POOL_RELEASE_THRESHOLD = 4, POOL_RESERVED = 5, POOL_RESERVED_HIGH = 6, POOL_USED = 7, POOL_USED_HIGH = 8 };

}  // namespace fake

// One lock a call, and no call before its time.
#define GM_LOCK \
    gate(); \
    std::lock_guard<std::recursive_mutex> guard(driver().lock)
#define GM_USABLE \
    GM_LOCK; \
    if (int error = usable()) return error

#endif
