// Streams, events and graphs of the fake driver.

#include "driver.h"

using namespace fake;

// --------------------------------------------------------------------------------------------- streams and events

GM_API cuStreamCreateWithPriority(void** stream, unsigned, int) {
    GM_USABLE;
    Stream* made = new Stream(current);
    made->number = ++driver().streams_made;
    driver().streams.insert(made);
    *stream = made;
    return SUCCESS;
}
GM_API cuStreamCreate(void** stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
GM_API cuStreamDestroy_v2(void* handle) {
    GM_LOCK;
    Stream* stream = static_cast<Stream*>(handle);
    if (!driver().streams.count(stream)) return INVALID_HANDLE;
    run_stream(stream);
    driver().streams.erase(stream);
    for (Event* event : driver().events)
        if (event->stream == stream) event->stream = nullptr;
    delete stream;
    return SUCCESS;
}
GM_API cuStreamSynchronize(void* handle) {
    until_idle();
    GM_USABLE;
    Stream* stream = stream_of(handle);
    if (!known(stream)) return INVALID_HANDLE;
    if (stream->capture) {
        if (stream->capture->owner != std::this_thread::get_id()) say("a thread breaks the capture of another");
        return stream->capture->broken = true, CAPTURE_UNSUPPORTED;
    }
    int error = run_stream(stream);
    stream->device->timeline.process = std::max(stream->device->timeline.process, stream->ready);
    trim(stream->device);
    return error;
}
GM_API cuStreamGetCtx(void* handle, void** context) {
    GM_USABLE;
    Stream* stream = stream_of(handle);
    if (!known(stream)) return INVALID_HANDLE;
    return *context = stream->device, SUCCESS;
}
GM_API cuStreamQuery(void* handle) {
    GM_USABLE;
    if (is_refused_in_capture()) return CAPTURE_UNSUPPORTED;
    Stream* stream = stream_of(handle);
    if (!known(stream)) return INVALID_HANDLE;
    return stream->queue.empty() ? int(SUCCESS) : int(NOT_READY);
}
GM_API cuStreamWaitEvent(void* handle, void* which, unsigned) {
    GM_USABLE;
    Stream* stream = stream_of(handle);
    Event* event = static_cast<Event*>(which);
    if (!known(stream) || !driver().events.count(event)) return INVALID_HANDLE;
    if (event->capture) return stream->capture = event->capture, SUCCESS;
    Stream* other = event->stream;
    uint64_t at = event->at;
    stream->ready = std::max(stream->ready, event->ready);
    if (!other) return SUCCESS;
    return submit(stream, Operation{[=] { return known(other) ? run_until(other, at) : int(SUCCESS); }});
}
GM_API cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
    GM_USABLE;
    return submit(stream_of(stream), Operation{[=] { return function(data), SUCCESS; }});
}
GM_API cuEventCreate(void** event, unsigned flags) {
    GM_USABLE;
    Event* made = new Event;
    made->flags = flags;
    driver().events.insert(made);
    *event = made;
    return SUCCESS;
}
GM_API cuEventDestroy_v2(void* handle) {
    GM_LOCK;
    Event* event = static_cast<Event*>(handle);
    if (!driver().events.erase(event)) return INVALID_HANDLE;
    delete event;
    return SUCCESS;
}
static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}
GM_API cuEventRecord(void* which, void* handle) {
    GM_USABLE;
    Stream* stream = stream_of(handle);
    Event* event = static_cast<Event*>(which);
    if (!known(stream) || !driver().events.count(event)) return INVALID_HANDLE;
    event->capture = stream->capture;
    if (stream->capture) {
        if (stream->capture->owner != std::this_thread::get_id())
            say("a thread enqueues into the capture of another");
        return SUCCESS;
    }
    event->stream = stream;
    event->at = stream->added + 1;
    event->ready = stream->ready;
    return submit(stream, Operation{[=] {
        if (driver().events.count(event)) event->seconds = now();
        return SUCCESS;
    }});
}
GM_API cuEventSynchronize(void* which) {
    bool waits = false;
    {
        std::lock_guard<std::recursive_mutex> guard(driver().lock);
        Event* event = static_cast<Event*>(which);
        waits = driver().events.count(event) && event->stream && event->stream->done < event->at;
    }
    if (waits) until_idle();
    GM_USABLE;
    Event* event = static_cast<Event*>(which);
    if (!driver().events.count(event)) return INVALID_HANDLE;
    if (event->capture) return event->capture->broken = true, CAPTURE_UNSUPPORTED;
    if (!event->stream) return SUCCESS;
    int error = run_until(event->stream, event->at);
    long& process = event->stream->device->timeline.process;
    process = std::max(process, event->ready);
    trim(event->stream->device);
    return error;
}
GM_API cuEventQuery(void* which) {
    GM_USABLE;
    if (is_refused_in_capture()) return CAPTURE_UNSUPPORTED;
    Event* event = static_cast<Event*>(which);
    if (!driver().events.count(event)) return INVALID_HANDLE;
    return event->stream && event->stream->done < event->at ? int(NOT_READY) : int(SUCCESS);
}
GM_API cuEventElapsedTime(float* milliseconds, void* from, void* to) {
    GM_USABLE;
    Event *first = static_cast<Event*>(from), *last = static_cast<Event*>(to);
    if (!driver().events.count(first) || !driver().events.count(last)) return INVALID_HANDLE;
    const unsigned without_time = 2;
    if ((first->flags | last->flags) & without_time) return INVALID_HANDLE;
    for (Event* event : {first, last}) {
        if (event->at == 0) return INVALID_HANDLE;
        if (event->stream && event->stream->done < event->at) return NOT_READY;
    }
    *milliseconds = float((last->seconds - first->seconds) * 1e3);
    return SUCCESS;
}
GM_API cuEventElapsedTime_v2(float* milliseconds, void* from, void* to) {
    return cuEventElapsedTime(milliseconds, from, to);
}

// ------------------------------------------------------------------------------------------------------- graphs

GM_API cuThreadExchangeStreamCaptureMode(int* mode) {
    std::swap(capture_mode(), *mode);
    return SUCCESS;
}
GM_API cuStreamBeginCapture_v2(void* handle, int mode) {
    GM_USABLE;
    Stream* stream = stream_of(handle);
    if (stream == &current->legacy) return CAPTURE_UNSUPPORTED;
    if (!known(stream)) return INVALID_HANDLE;
    if (stream->capture) return INVALID_VALUE;
    stream->capture = std::make_shared<Graph>();
    stream->capture->mode = mode;
    stream->capture_origin = true;
    return SUCCESS;
}
GM_API cuStreamIsCapturing(void* handle, int* status) {
    GM_USABLE;
    Stream* stream = stream_of(handle);
    if (!known(stream)) return INVALID_HANDLE;
    // Asked of the legacy stream while a stream that waits for it is captured. Whether one does is not known here: all are taken for such.
    if (stream == &stream->device->legacy)
        for (Stream* other : driver().streams)
            if (other->device == stream->device && other->capture) return CAPTURE_IMPLICIT;
    *status = !stream->capture ? 0 : stream->capture->broken ? 2 : 1;
    return SUCCESS;
}
GM_API cuStreamEndCapture(void* handle, void** graph) {
    GM_USABLE;
    Stream* stream = stream_of(handle);
    *graph = nullptr;
    if (!known(stream)) return INVALID_HANDLE;
    if (!stream->capture || !stream->capture_origin) return CAPTURE_UNMATCHED;
    std::shared_ptr<Graph> made = stream->capture;
    for (Stream* each : driver().streams)
        if (each->capture == made) each->capture.reset(), each->capture_origin = false;
    for (Event* event : driver().events)
        if (event->capture == made) event->capture.reset();
    if (made->broken) return CAPTURE_INVALIDATED;
    auto* handle_of = new std::shared_ptr<Graph>(made);
    driver().graphs.insert(handle_of);
    *graph = handle_of;
    return SUCCESS;
}
GM_API cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
    GM_USABLE;
    auto* from = static_cast<std::shared_ptr<Graph>*>(graph);
    if (!driver().graphs.count(from)) return INVALID_HANDLE;
    auto* made = new std::shared_ptr<Graph>(std::make_shared<Graph>(**from));
    driver().execs.insert(made);
    *exec = made;
    return SUCCESS;
}
GM_API cuGraphUpload(void*, void*) { return SUCCESS; }
GM_API cuGraphLaunch(void* exec, void* stream) {
    GM_USABLE;
    auto* which = static_cast<std::shared_ptr<Graph>*>(exec);
    if (!driver().execs.count(which)) return INVALID_HANDLE;
    for (const Operation& operation : (*which)->operations)
        if (int error = submit(stream_of(stream), operation)) return error;
    return SUCCESS;
}
template <class Set> static int destroy(Set& set, void* handle) {
    GM_LOCK;
    auto* which = static_cast<std::shared_ptr<Graph>*>(handle);
    if (!set.erase(which)) return INVALID_HANDLE;
    delete which;
    return SUCCESS;
}
GM_API cuGraphDestroy(void* graph) { return destroy(driver().graphs, graph); }
GM_API cuGraphExecDestroy(void* exec) { return destroy(driver().execs, exec); }
