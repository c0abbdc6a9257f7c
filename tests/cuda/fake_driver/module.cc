// Modules, functions and launches of the fake driver.
//
// An image stands for the emulated unit FNV.so in the folder of units, where FNV is the 64-bit FNV-1a hash of the image
// in sixteen hexadecimal digits. Whether a device of this compute capability and a driver of this version would take the image
// is worked out from its own headers.

#include "driver.h"

using namespace fake;

namespace {

uint64_t number(const unsigned char* at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;) value = value << 8 | at[i];
    return value;
}

// The newest PTX that a driver takes: 7.4 is 74.
int ptx_of_driver(int version) {
    static const int table[][2] = {{11000, 70}, {11010, 71}, {11020, 72}, {11030, 73}, {11040, 74}, {11050, 75},
                                   {11060, 76}, {11070, 77}, {11080, 78}, {12000, 80}, {12010, 81}, {12020, 82},
                                   {12030, 83}, {12040, 84}, {12050, 85}, {12060, 85}, {12080, 87}, {12090, 88},
                                   {13000, 90}, {13010, 91}, {13020, 92}};
    int found = 0;
    for (auto& row : table)
        if (row[0] <= version) found = row[1];
    return found;
}

// Machine code: the whole image's length, and whether this device and driver take it.
int check_elf(const unsigned char* image, size_t* bytes) {
    const uint16_t cuda = 190;
    if (number(image + 18, 2) != cuda) return INVALID_IMAGE;
    uint64_t sections = number(image + 40, 8), programs = number(image + 32, 8);
    uint64_t section_bytes = number(image + 58, 2), section_count = number(image + 60, 2);
    uint64_t end = std::max(sections + section_bytes * section_count, programs + number(image + 54, 2) * number(image + 56, 2));
    for (uint64_t i = 0; i < section_count; i++) {
        const unsigned char* section = image + sections + i * section_bytes;
        const uint64_t no_bits = 8;
        if (number(section + 4, 4) != no_bits) end = std::max(end, number(section + 24, 8) + number(section + 32, 8));
    }
    *bytes = end;
    // From version 8 of the ABI (CUDA 13) on the architecture is in the second byte of the flags, before in the first.
    uint64_t flags = number(image + 48, 4);
    bool newer = image[8] >= 8;
    int arch = int(newer ? flags >> 8 & 0xff : flags & 0xff);
    if (newer && settings().driver < 13000) return INVALID_IMAGE;
    if (arch / 10 != current->properties().major || arch % 10 > current->properties().minor) return NO_BINARY_FOR_GPU;
    if (arch == settings().refuse_code) return NO_BINARY_FOR_GPU;
    // Between Tegra and other devices nothing is promised.
    const int tegra = 87, device = current->properties().major * 10 + current->properties().minor;
    if (arch != device && (arch == tegra || device == tegra)) return NO_BINARY_FOR_GPU;
    return SUCCESS;
}

int check_ptx(const std::string& text) {
    size_t version = text.find(".version "), target = text.find(".target sm_");
    if (version == std::string::npos || target == std::string::npos) return INVALID_IMAGE;
    int major = 0, minor = 0;
    if (sscanf(text.c_str() + version, ".version %d.%d", &major, &minor) != 2) return INVALID_PTX;
    if (major * 10 + minor > ptx_of_driver(settings().driver)) return UNSUPPORTED_PTX_VERSION;
    if (settings().refuse_ptx) return INVALID_PTX;
    if (atoi(text.c_str() + target + 11) > current->properties().major * 10 + current->properties().minor) return INVALID_PTX;
    return SUCCESS;
}

std::string unit_of(const std::string& image) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (unsigned char byte : image) hash = (hash ^ byte) * 0x100000001b3u;
    char name[32];
    snprintf(name, sizeof name, "/%016llx.so", (unsigned long long)hash);
    return settings().units + name;
}

}  // namespace

GM_API cuModuleLoadData(void** module, const void* image) {
    GM_USABLE;
    if (is_refused_in_capture()) return CAPTURE_UNSUPPORTED;
    if (!image) return INVALID_VALUE;
    const unsigned char* bytes = static_cast<const unsigned char*>(image);
    auto made = std::make_unique<Module>();
    made->device = current;
    if (memcmp(bytes, "\x7f""ELF", 4) == 0) {
        size_t length = 0;
        if (int error = check_elf(bytes, &length)) return error;
        made->image.assign(reinterpret_cast<const char*>(bytes), length);
    } else {
        made->image = reinterpret_cast<const char*>(bytes);
        if (int error = check_ptx(made->image)) return error;
    }
    std::string path = unit_of(made->image);
    made->unit = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!made->unit) {
        say("an image of %zu bytes has no emulated unit: %s", made->image.size(), dlerror());
        return INVALID_IMAGE;
    }
    *module = made.get();
    driver().modules.insert(made.release());
    return SUCCESS;
}
GM_API cuModuleLoadDataEx(void** module, const void* image, unsigned count, int* options, void** values) {
    const int error_log = 5, error_log_bytes = 6;  // CU_JIT_ERROR_LOG_BUFFER and its size
    int error = cuModuleLoadData(module, image);
    char* log = nullptr;
    size_t bytes = 0;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == error_log) log = static_cast<char*>(values[i]);
        if (options[i] == error_log_bytes) bytes = reinterpret_cast<size_t>(values[i]);
    }
    if (log && bytes) snprintf(log, bytes, "%s", error == INVALID_PTX ? "ptxas fatal : refused, as was asked for\n" : "");
    return error;
}
GM_API cuModuleUnload(void* handle) {
    GM_LOCK;
    if (is_refused_in_capture()) return CAPTURE_UNSUPPORTED;
    Module* module = static_cast<Module*>(handle);
    if (!driver().modules.count(module)) return INVALID_HANDLE;
    run_all();
    driver().modules.erase(module);
    dlclose(module->unit);
    delete module;
    return SUCCESS;
}
GM_API cuModuleGetFunction(void** function, void* handle, const char* name) {
    GM_USABLE;
    Module* module = static_cast<Module*>(handle);
    if (!driver().modules.count(module)) return INVALID_HANDLE;
    void* kernel = dlsym(module->unit, (std::string("gm_export_") + name).c_str());
    // The image must know it too, not only the unit that stands for it.
    if (!kernel || module->image.find(name) == std::string::npos) return NOT_FOUND;
    auto& made = module->functions[name];
    if (!made) made.reset(new Function{name, static_cast<const gm_emulator::Kernel*>(kernel), module});
    *function = made.get();
    return SUCCESS;
}

static Function* function_of(void* handle) {
    for (Module* module : driver().modules)
        for (auto& [name, function] : module->functions)
            if (function.get() == handle) return function.get();
    return nullptr;
}

GM_API cuFuncGetAttribute(int* value, int attribute, void* handle) {
    GM_USABLE;
    const Function* function = function_of(handle);
    if (!function) return INVALID_HANDLE;
    switch (attribute) {
        case 0: *value = int(function->kernel->threads); break;  // threads of a block
        case 4: *value = current->properties().registers; break; // registers
        case 5: case 6: *value = current->properties().major * 10 + current->properties().minor; break;
        default: *value = 0; break;
    }
    return SUCCESS;
}
GM_API cuFuncSetAttribute(void* handle, int attribute, int value) {
    GM_USABLE;
    Function* function = function_of(handle);
    if (!function) return INVALID_HANDLE;
    if (attribute == 8) {
        if (value < 0 || uint32_t(value) > current->properties().shared_by_choice()) return INVALID_VALUE;
        function->may_give = uint32_t(value);
    }
    return SUCCESS;
}
GM_API cuFuncSetCacheConfig(void* handle, int) { return cuFuncSetAttribute(handle, 0, 0); }
GM_API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, void* handle, int threads, size_t, unsigned) {
    GM_USABLE;
    if (!function_of(handle)) return INVALID_HANDLE;
    if (threads <= 0) return INVALID_VALUE;
    *blocks = std::min(16, 2048 / threads);
    return SUCCESS;
}
GM_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* handle, int threads, size_t shared) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, threads, shared, 0);
}

static int launch(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                  unsigned block_z, unsigned shared, void* stream, void** parameters, void** extra, bool overlaps) {
    GM_USABLE;
    const Function* function = function_of(handle);
    if (!function || function->module->device != stream_of(stream)->device) return INVALID_HANDLE;
    if (extra) return NOT_SUPPORTED;
    bool grid = grid_x && grid_y && grid_z && grid_x <= 0x7fffffff && grid_y <= 65535 && grid_z <= 65535;
    bool block = block_x && block_y && block_z && uint64_t(block_x) * block_y * block_z <= 1024;
    if (!grid || !block || shared > function->may_give) return INVALID_VALUE;
    const gm_emulator::Kernel* kernel = function->kernel;
    if (block_x * block_y * block_z > kernel->threads) return LAUNCH_OUT_OF_RESOURCES;
    if (block_y != 1 || block_z != 1) {
        say("%s: kernels here have blocks of one dimension", kernel->name);
        return INVALID_VALUE;
    }
    if (kernel->parameters && !parameters) return INVALID_VALUE;
    auto values = std::make_shared<std::vector<std::vector<char>>>();
    for (uint32_t i = 0; i < kernel->parameters; i++) {
        const char* from = static_cast<const char*>(parameters[i]);
        if (!from) return INVALID_VALUE;
        values->emplace_back(from, from + kernel->sizes[i]);
    }
    return submit(stream_of(stream), Operation{[=]() -> int {
        driver().launches++;
        if (overlaps) driver().overlapping++;
        if (grid_z > 1) driver().layered++;
        if (settings().fail_launch == kernel->name) {
            say("launch of %s: a failure was asked for", kernel->name);
            return LAUNCH_FAILED;
        }
        std::vector<void*> pointers;
        for (auto& value : *values) pointers.push_back(value.data());
        char report[2048];
        if (!gm_emulator_launch(kernel, grid_x, grid_y, grid_z, block_x, shared, pointers.data(), overlaps,
                                settings().seed + driver().launches, report, sizeof report))
            return SUCCESS;
        say("%s", report);
        if (strstr(report, "not inside an allocation")) return ILLEGAL_ADDRESS;
        if (strstr(report, "not aligned")) return MISALIGNED_ADDRESS;
        return LAUNCH_FAILED;
    }, false, Engine::COMPUTE, kernel->name});
}
GM_API cuLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared, void* stream, void** parameters,
                      void** extra) {
    return launch(handle, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra, false);
}

// As in cuda.h: CUlaunchAttribute, of which only that of programmatic dependent launch is known here, and CUlaunchConfig.
struct Attribute {
    int id;
    char pad[4];
    union {
        char all[64];
        int allowed;
    } value;
};
struct Config {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    void* stream;
    Attribute* attributes;
    unsigned count;
};
GM_API cuLaunchKernelEx(const Config* config, void* handle, void** parameters, void** extra) {
    if (!config || (config->count && !config->attributes)) return INVALID_VALUE;
    bool overlaps = false;
    for (unsigned i = 0; i < config->count; i++) {
        if (config->attributes[i].id != 6) return say("launch attribute %d is not known here", config->attributes[i].id), NOT_SUPPORTED;
        overlaps = config->attributes[i].value.allowed != 0;
    }
    // Images for devices before compute capability 9.0 have no instruction to wait with.
    if (overlaps && current && current->properties().major < 9)
        return say("a launch overlaps on compute capability %d.%d", current->properties().major, current->properties().minor), NOT_SUPPORTED;
    return launch(handle, config->grid_x, config->grid_y, config->grid_z, config->block_x, config->block_y, config->block_z,
                  config->shared, config->stream, parameters, extra, overlaps);
}
GM_API cuLaunchCooperativeKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                 unsigned block_y, unsigned block_z, unsigned shared, void* stream, void** parameters) {
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, nullptr);
}

// ------------------------------------------------------------------------------------------------------- errors

static const struct { int code; const char *name, *text; } ERRORS[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
    {CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not initiated in this stream"},
};
GM_API cuGetErrorName(int code, const char** name) {
    for (auto& error : ERRORS)
        if (error.code == code) return *name = error.name, SUCCESS;
    return *name = nullptr, INVALID_VALUE;
}
GM_API cuGetErrorString(int code, const char** text) {
    for (auto& error : ERRORS)
        if (error.code == code) return *text = error.text, SUCCESS;
    return *text = nullptr, INVALID_VALUE;
}
GM_API cuProfilerStart() { return SUCCESS; }
GM_API cuProfilerStop() { return SUCCESS; }
