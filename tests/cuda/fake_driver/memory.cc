// Device memory, page-locked memory, pools and copies of the fake driver.

#include "driver.h"

using namespace fake;

static int allocate(uint64_t* address, size_t bytes, Device* device, std::shared_ptr<Pool> pool) {
    Driver& d = driver();
    if (bytes == 0) return INVALID_VALUE;
    if (settings().oom_after >= 0 && d.allocations >= settings().oom_after) return OUT_OF_MEMORY;
    size_t all = device->properties().memory;
    if (bytes > all || device->in_use > all - bytes) return OUT_OF_MEMORY;
    void* memory = nullptr;
    if (posix_memalign(&memory, 512, bytes)) return OUT_OF_MEMORY;
    // What nobody wrote is neither zero nor a usual number.
    memset(memory, 0xa5, bytes);
    char name[64];
    snprintf(name, sizeof name, "allocation %ld", d.allocations++);
    gm_emulator_allocate(memory, bytes, name, false, true);
    *address = uint64_t(memory);
    d.memory[*address] = Memory{bytes, device, pool};
    device->in_use += bytes;
    if (!pool) return SUCCESS;
    pool->used += bytes;
    pool->most_used = std::max(pool->most_used, pool->used);
    pool->reserved = std::max(pool->reserved, pool->used);
    pool->most_reserved = std::max(pool->most_reserved, pool->reserved);
    return SUCCESS;
}
static int release(uint64_t address) {
    Driver& d = driver();
    auto found = d.memory.find(address);
    if (found == d.memory.end()) {
        say("%#llx is freed, which no allocation begins at", (unsigned long long)address);
        return INVALID_VALUE;
    }
    found->second.device->in_use -= found->second.bytes;
    if (found->second.pool) found->second.pool->used -= found->second.bytes;
    d.freed.emplace_back(address, found->second.bytes);
    d.freed_bytes += found->second.bytes;
    d.memory.erase(found);
    gm_emulator_free(reinterpret_cast<void*>(address));
    for (; d.freed_bytes > 256u << 20; d.freed.pop_front()) {
        d.freed_bytes -= d.freed.front().second;
        free(reinterpret_cast<void*>(d.freed.front().first));
    }
    return SUCCESS;
}

GM_API cuMemGetInfo_v2(size_t* unused, size_t* total) {
    GM_USABLE;
    *total = current->properties().memory;
    *unused = *total - current->in_use;
    return SUCCESS;
}
GM_API cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    GM_USABLE;
    if (is_refused_in_capture()) return CAPTURE_UNSUPPORTED;
    return allocate(address, bytes, current, nullptr);
}
static int without_context() {
    if (current && current->retained) return SUCCESS;
    say("memory is freed by a thread without a context");
    return INVALID_CONTEXT;
}
GM_API cuPointerGetAttribute(void* data, int attribute, uint64_t address) {
    GM_USABLE;
    const int device_ordinal = 9;
    if (attribute != device_ordinal) return INVALID_VALUE;
    auto after = driver().memory.upper_bound(address);
    if (after == driver().memory.begin()) return INVALID_VALUE;
    --after;
    if (address >= after->first + after->second.bytes || after->second.freed) return INVALID_VALUE;
    *static_cast<int*>(data) = int(after->second.device - driver().devices);
    return SUCCESS;
}
GM_API cuMemFree_v2(uint64_t address) {
    GM_LOCK;
    if (!address) return SUCCESS;
    if (int error = without_context()) return error;
    if (is_refused_in_capture()) return CAPTURE_UNSUPPORTED;
    run_all();
    // Given back even after a failure, so that what is counted at the end is the program's doing.
    int error = release(address);
    return current->sticky ? current->sticky : error;
}
static int allocate_async(uint64_t* address, size_t bytes, Stream* stream, std::shared_ptr<Pool> pool) {
    if (!settings().pools) return NOT_SUPPORTED;
    if (!known(stream)) return INVALID_HANDLE;
    if (stream->capture) {
        if (stream->capture->owner != std::this_thread::get_id())
            say("a thread enqueues into the capture of another");
        return CAPTURE_UNSUPPORTED;
    }
    return allocate(address, bytes, stream->device, pool);
}
GM_API cuMemAllocAsync(uint64_t* address, size_t bytes, void* stream) {
    GM_USABLE;
    return allocate_async(address, bytes, stream_of(stream), stream_of(stream)->device->pool);
}
GM_API cuMemFreeAsync(uint64_t address, void* handle) {
    GM_LOCK;
    if (int error = without_context()) return error;
    auto found = driver().memory.find(address);
    if (found == driver().memory.end() || found->second.freed) return INVALID_VALUE;
    Stream* stream = stream_of(handle);
    if (!known(stream)) return INVALID_HANDLE;
    if (stream->device->sticky) return release(address), stream->device->sticky;
    found->second.freed = true;
    return submit(stream, Operation{[address] { return release(address); }, true});
}
GM_API cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
    GM_USABLE;
    if (is_refused_in_capture()) return CAPTURE_UNSUPPORTED;
    if (!bytes || posix_memalign(memory, 4096, bytes)) return INVALID_VALUE;
    driver().host_memory[*memory] = bytes;
    return SUCCESS;
}
GM_API cuMemFreeHost(void* memory) {
    GM_LOCK;
    if (is_refused_in_capture()) return CAPTURE_UNSUPPORTED;
    // It waits for every device, since any may use it.
    for (Device& device : driver().devices) run_stream(&device.legacy);
    for (Stream* stream : driver().streams) run_stream(stream);
    if (!driver().host_memory.erase(memory)) return INVALID_VALUE;
    free(memory);
    return SUCCESS;
}

// Whether a range is page-locked memory, which the device reads and writes itself.
static bool locked(const void* from, size_t bytes) {
    for (auto& [memory, size] : driver().host_memory) {
        const char *first = static_cast<const char*>(memory), *begin = static_cast<const char*>(from);
        if (begin >= first && begin + bytes <= first + size) return true;
    }
    return false;
}
static int range_error(const char* what, uint64_t address, size_t bytes) {
    if (!in_memory(address, bytes)) {
        say("%s of %zu bytes at %#llx, which is not device memory as a whole", what, bytes, (unsigned long long)address);
        return INVALID_VALUE;
    }
    if (reaches(current, address)) return SUCCESS;
    say("%s of %zu bytes at %#llx, which is memory of device %d and out of reach of device %d", what, bytes,
        (unsigned long long)address, owner_of(address, bytes)->index(), current->index());
    return INVALID_VALUE;
}
// A copy; of memory that nobody wrote it is told, and done.
static Operation copy(void* to, uint64_t from_address, size_t bytes, bool to_device) {
    return {[=]() -> int {
        const void* from = reinterpret_cast<const void*>(from_address);
        if (int error = alive("a copy from the device", from_address, bytes)) return error;
        if (to_device)
            if (int error = alive("a copy to the device", uint64_t(to), bytes)) return error;
        if (size_t unset = gm_emulator_unset(from, bytes))
            say("a copy of %zu bytes, of which %zu were never written", bytes, unset);
        memcpy(to, from, bytes);
        gm_emulator_written(to, bytes);
        return SUCCESS;
    }};
}
static Operation fill(uint64_t to, unsigned value, size_t size, size_t count) {
    return {[=]() -> int {
        if (int error = alive("a fill", to, size * count)) return error;
        char* memory = reinterpret_cast<char*>(to);
        for (size_t i = 0; i < count; i++) memcpy(memory + size * i, &value, size);
        gm_emulator_written(memory, size * count);
        return SUCCESS;
    }};
}
GM_API cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
    GM_USABLE;
    if (int error = range_error("a copy to the device", to, bytes)) return error;
    // Most devices have ordinary memory read before the call returns, and page-locked memory read by themselves, later.
    bool late = locked(from, bytes) || settings().coherent;
    auto staged = std::make_shared<std::vector<char>>();
    if (!late) staged->assign(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    return submit(stream_of(stream), Operation{[=]() -> int {
        if (int error = alive("a copy to the device", to, bytes)) return error;
        memcpy(reinterpret_cast<void*>(to), late ? from : staged->data(), bytes);
        gm_emulator_written(reinterpret_cast<void*>(to), bytes);
        return SUCCESS;
    }, false, late ? Engine::COPY : Engine::NONE, "copy"});
}
GM_API cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
    if (int error = cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr)) return error;
    GM_LOCK;
    return run_stream(stream_of(nullptr));
}
GM_API cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* handle) {
    bool waits = false;
    {
        std::lock_guard<std::recursive_mutex> guard(driver().lock);
        waits = !locked(to, bytes);
    }
    if (waits) until_idle();
    GM_USABLE;
    if (int error = range_error("a copy from the device", from, bytes)) return error;
    Stream* stream = stream_of(handle);
    if (int error = submit(stream, copy(to, from, bytes, false))) return error;
    // Into ordinary memory the call returns when the copy is done, on most devices.
    return locked(to, bytes) || settings().coherent || stream->capture ? int(SUCCESS) : run_stream(stream);
}
GM_API cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
    if (int error = cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr)) return error;
    GM_LOCK;
    return run_stream(stream_of(nullptr));
}
GM_API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
    GM_USABLE;
    if (int error = range_error("a copy to the device", to, bytes)) return error;
    if (int error = range_error("a copy from the device", from, bytes)) return error;
    return submit(stream_of(stream), copy(reinterpret_cast<void*>(to), from, bytes, true));
}
GM_API cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes) { return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr); }
// As in cuda.h: CUDA_MEMCPY2D and CUDA_MEMCPY3D_PEER, of which arrays, depth and offsets are not known here.
struct Copy2D {
    size_t from_x, from_y;
    int from_type;
    const void* from_host;
    uint64_t from_device;
    void* from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    int to_type;
    void* to_host;
    uint64_t to_device;
    void* to_array;
    size_t to_pitch;
    size_t width, height;
};
struct Copy3DPeer {
    size_t from_x, from_y, from_z, from_lod;
    int from_type;
    const void* from_host;
    uint64_t from_device;
    void *from_array, *from_context;
    size_t from_pitch, from_height;
    size_t to_x, to_y, to_z, to_lod;
    int to_type;
    void* to_host;
    uint64_t to_device;
    void *to_array, *to_context;
    size_t to_pitch, to_height;
    size_t width, height, depth;
};
static size_t span(size_t pitch, size_t width, size_t height) { return pitch * (height - 1) + width; }
// A copy of rows that lie apart, on memory that is there.
static Operation copy_rows(char* to, size_t to_pitch, const char* from, size_t from_pitch, size_t width, size_t height,
                           bool from_device, bool to_device) {
    return {[=]() -> int {
        if (from_device)
            if (int error = alive("a copy from the device", uint64_t(from), span(from_pitch, width, height))) return error;
        if (to_device)
            if (int error = alive("a copy to the device", uint64_t(to), span(to_pitch, width, height))) return error;
        for (size_t row = 0; row < height; row++) {
            const char* source = from + row * from_pitch;
            size_t unset = from_device ? gm_emulator_unset(source, width) : 0;
            if (unset) say("a copy of %zu bytes, of which %zu were never written", width, unset);
            memcpy(to + row * to_pitch, source, width);
            if (to_device) gm_emulator_written(to + row * to_pitch, width);
        }
        return SUCCESS;
    }};
}
const int HOST = 1, DEVICE = 2;
GM_API cuMemcpy2DAsync_v2(const Copy2D* c, void* handle) {
    GM_USABLE;
    if (!c->width || !c->height || c->from_x || c->from_y || c->to_x || c->to_y) return INVALID_VALUE;
    if (c->from_pitch < c->width || c->to_pitch < c->width) return INVALID_VALUE;
    if (std::max(c->from_pitch, c->to_pitch) > settings().pitch) return INVALID_VALUE;
    bool from_device = c->from_type == DEVICE, to_device = c->to_type == DEVICE;
    if ((!from_device && c->from_type != HOST) || (!to_device && c->to_type != HOST)) return INVALID_VALUE;
    size_t read = span(c->from_pitch, c->width, c->height), written = span(c->to_pitch, c->width, c->height);
    if (from_device)
        if (int error = range_error("a copy from the device", c->from_device, read)) return error;
    if (to_device)
        if (int error = range_error("a copy to the device", c->to_device, written)) return error;
    const char* from = from_device ? reinterpret_cast<const char*>(c->from_device) : static_cast<const char*>(c->from_host);
    char* to = to_device ? reinterpret_cast<char*>(c->to_device) : static_cast<char*>(c->to_host);
    Stream* stream = stream_of(handle);
    Operation operation = copy_rows(to, c->to_pitch, from, c->from_pitch, c->width, c->height, from_device, to_device);
    // As above: ordinary memory is read before the call returns, and written too.
    if (!from_device && !locked(from, read) && !settings().coherent) {
        auto staged = std::make_shared<std::vector<char>>(from, from + read);
        size_t to_pitch = c->to_pitch, from_pitch = c->from_pitch, width = c->width, height = c->height;
        operation.run = [=] { return copy_rows(to, to_pitch, staged->data(), from_pitch, width, height, false, to_device).run(); };
    }
    if (int error = submit(stream, std::move(operation))) return error;
    bool late = to_device || locked(to, written) || settings().coherent || stream->capture;
    return late ? int(SUCCESS) : run_stream(stream);
}
// Copies between devices that reach each other. A driver would do others through the processor's memory; who asks for that here has
// not looked at cuDeviceCanAccessPeer, and is told.
static int copy_peer(const Copy3DPeer* c, void* handle) {
    GM_USABLE;
    // A call that names the contexts of two devices fails with what either failed with.
    for (void* context : {c->from_context, c->to_context})
        if (context != current)
            if (int error = static_cast<Device*>(context)->called()) return error;
    if (!c->width || !c->height || c->depth != 1 || c->from_type != DEVICE || c->to_type != DEVICE) return INVALID_VALUE;
    if (c->from_pitch < c->width || c->to_pitch < c->width) return INVALID_VALUE;
    size_t read = span(c->from_pitch, c->width, c->height), written = span(c->to_pitch, c->width, c->height);
    if (int error = range_error("a copy between devices", c->from_device, read)) return error;
    if (int error = range_error("a copy between devices", c->to_device, written)) return error;
    Device *from = owner_of(c->from_device, read), *to = owner_of(c->to_device, written);
    if (c->from_context != from || c->to_context != to) {
        say("a copy between devices names another context than that of its memory");
        return INVALID_CONTEXT;
    }
    Operation rows = copy_rows(reinterpret_cast<char*>(c->to_device), c->to_pitch, reinterpret_cast<const char*>(c->from_device),
                               c->from_pitch, c->width, c->height, true, true);
    return submit(stream_of(handle), Operation{[=]() -> int {
        if (from->sticky) return from->sticky;
        if (to->sticky) return to->sticky;
        driver().peer_copies++;
        return rows.run();
    }});
}
GM_API cuMemcpy3DPeerAsync(const Copy3DPeer* c, void* handle) {
    if (std::max(c->from_pitch, c->to_pitch) > settings().pitch) return INVALID_VALUE;
    return copy_peer(c, handle);
}
GM_API cuMemcpyPeerAsync(uint64_t to, void* to_context, uint64_t from, void* from_context, size_t bytes, void* handle) {
    Copy3DPeer c{};
    c.from_type = c.to_type = DEVICE;
    c.from_device = from, c.from_context = from_context, c.from_pitch = bytes;
    c.to_device = to, c.to_context = to_context, c.to_pitch = bytes;
    c.width = bytes, c.height = c.depth = 1;
    return copy_peer(&c, handle);
}
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

GM_API cuDeviceGetDefaultMemPool(void** found, int device) {
    GM_LOCK;
    if (int error = device_error(device)) return error;
    *found = driver().devices[device].pool.get();
    return SUCCESS;
}
GM_API cuDeviceGetMemPool(void** found, int device) { return cuDeviceGetDefaultMemPool(found, device); }

// As in cuda.h, as far as it is used: CUmemPoolProps.
struct PoolProperties {
    int allocation, handles, place, device;
};
GM_API cuMemPoolCreate(void** made, const PoolProperties* properties) {
    GM_LOCK;
    if (is_refused_in_capture()) return CAPTURE_UNSUPPORTED;
    const int pinned = 1, no_handles = 0, on_device = 1;
    if (!settings().pools) return NOT_SUPPORTED;
    if (properties->allocation != pinned || properties->handles != no_handles || properties->place != on_device) return INVALID_VALUE;
    if (int error = device_error(properties->device)) return error;
    auto pool = std::make_shared<Pool>();
    driver().devices[properties->device].pools[pool.get()] = pool;
    *made = pool.get();
    return SUCCESS;
}
static std::shared_ptr<Pool> pool_of(void* handle) {
    for (Device& device : driver().devices) {
        if (handle == device.pool.get()) return device.pool;
        auto found = device.pools.find(static_cast<Pool*>(handle));
        if (found != device.pools.end()) return found->second;
    }
    return nullptr;
}
GM_API cuMemPoolDestroy(void* handle) {
    GM_LOCK;
    // What was taken from it lives on until it is freed.
    for (Device& device : driver().devices)
        if (device.pools.erase(static_cast<Pool*>(handle))) return SUCCESS;
    return INVALID_VALUE;
}
GM_API cuMemAllocFromPoolAsync(uint64_t* address, size_t bytes, void* handle, void* stream) {
    GM_USABLE;
    auto pool = pool_of(handle);
    return pool ? allocate_async(address, bytes, stream_of(stream), pool) : int(INVALID_VALUE);
}
// As in cuda.h: CUmemAccessDesc.
struct Access {
    int place, device, flags;
};
GM_API cuMemPoolSetAccess(void* handle, const Access* access, size_t count) {
    GM_LOCK;
    auto pool = pool_of(handle);
    if (!pool) return INVALID_VALUE;
    const int on_device = 1, read_write = 3;
    for (size_t i = 0; i < count; i++) {
        if (access[i].place != on_device || (access[i].flags && access[i].flags != read_write)) return INVALID_VALUE;
        if (int error = device_error(access[i].device)) return error;
        Device* owner = nullptr;
        for (Device& device : driver().devices)
            if (device.pool == pool || device.pools.count(pool.get())) owner = &device;
        if (owner && owner->called()) return owner->sticky;
        Device* other = driver().devices + access[i].device;
        if (other == owner || !settings().peers.count({other->index(), owner->index()})) return INVALID_DEVICE;
        if (access[i].flags) pool->access.insert(other);
        else pool->access.erase(other);
    }
    return SUCCESS;
}
GM_API cuMemPoolSetAttribute(void* handle, int attribute, void* value) {
    GM_USABLE;
    if (is_refused_in_capture()) return CAPTURE_UNSUPPORTED;
    auto pool = pool_of(handle);
    if (!pool) return INVALID_VALUE;
    if (attribute != POOL_RELEASE_THRESHOLD) return NOT_SUPPORTED;
    pool->keeps = *static_cast<uint64_t*>(value);
    return SUCCESS;
}
GM_API cuMemPoolGetAttribute(void* handle, int attribute, void* value) {
    GM_USABLE;
    if (is_refused_in_capture()) return CAPTURE_UNSUPPORTED;
    auto pool = pool_of(handle);
    if (!pool) return INVALID_VALUE;
    uint64_t& out = *static_cast<uint64_t*>(value);
    switch (attribute) {
        case POOL_RELEASE_THRESHOLD: return out = pool->keeps, SUCCESS;
        case POOL_RESERVED: return out = pool->reserved, SUCCESS;
        case POOL_RESERVED_HIGH: return out = pool->most_reserved, SUCCESS;
        case POOL_USED: return out = pool->used, SUCCESS;
        case POOL_USED_HIGH: return out = pool->most_used, SUCCESS;
        default: return NOT_SUPPORTED;
    }
}
GM_API cuMemPoolTrimTo(void* handle, size_t keep) {
    GM_USABLE;
    if (is_refused_in_capture()) return CAPTURE_UNSUPPORTED;
    auto pool = pool_of(handle);
    return pool ? (pool->keep_at_most(keep), int(SUCCESS)) : int(INVALID_VALUE);
}
