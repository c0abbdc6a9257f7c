// A libnvidia-ml.so.1 in the same object, as far as health is read by it. GRISTMILL_GPU_FAKE without the word `nvml` is a machine where it
// finds no driver.

#include "driver.h"

using namespace fake;

namespace {

enum : int { NVML_SUCCESS = 0, NVML_INVALID = 2, NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6, NVML_DRIVER_NOT_LOADED = 9, NVML_GPU_IS_LOST = 15 };

// A handle is not 0.
int device_of(void* handle) { return int(reinterpret_cast<uintptr_t>(handle)) - 1; }

}  // namespace

GM_API nvmlInit_v2() { return settings().nvml ? NVML_SUCCESS : NVML_DRIVER_NOT_LOADED; }
GM_API nvmlShutdown() { return NVML_SUCCESS; }
GM_API nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
    for (int device = 0; device < settings().devices; device++) {
        unsigned byte = unsigned(0xfa - device);
        char own[64];
        snprintf(own, sizeof own, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", byte, byte, byte, byte, byte,
                 byte, byte, byte, byte, byte, byte, byte, byte, byte, byte, byte);
        if (strcmp(own, uuid)) continue;
        *handle = reinterpret_cast<void*>(uintptr_t(device + 1));
        return NVML_SUCCESS;
    }
    return NVML_NOT_FOUND;
}
GM_API nvmlDeviceGetTemperature(void* handle, int sensor, unsigned* degrees) {
    GM_LOCK;
    if (sensor) return NVML_INVALID;
    int device = device_of(handle);
    if (driver().devices[device].lost) return NVML_GPU_IS_LOST;
    if (settings().of[device].temperature < 0) return NVML_NOT_SUPPORTED;
    *degrees = unsigned(settings().of[device].temperature);
    return NVML_SUCCESS;
}
GM_API nvmlDeviceGetCurrentClocksThrottleReasons(void* handle, unsigned long long* reasons) {
    GM_LOCK;
    int device = device_of(handle);
    if (driver().devices[device].lost) return NVML_GPU_IS_LOST;
    *reasons = (unsigned long long)settings().of[device].throttle;
    return NVML_SUCCESS;
}
