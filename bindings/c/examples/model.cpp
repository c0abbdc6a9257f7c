// A layer of a GGUF file: `model FILE TENSOR` prints its outputs for an input of ones, and on standard error what ran.
#include <gristmill.h>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

static void check(gm_status status) {
    if (status != GM_OK) throw std::runtime_error(gm_last_error());
}

// What `make` gives, freed with `free` at the end of its scope.
template <class T, class Make> static auto owned(Make make, void (*free)(T *)) {
    T *made = nullptr;
    check(make(&made));
    return std::unique_ptr<T, void (*)(T *)>(made, free);
}

int main(int argc, char **argv) try {
    if (argc != 3) throw std::runtime_error("usage: model FILE TENSOR");
    auto model = owned<gm_model>([&](gm_model **m) { return gm_model_open(argv[1], m); }, gm_model_free);
    auto layer = owned<gm_linear>(
        [&](gm_linear **l) { return gm_model_linear(model.get(), argv[2], nullptr, nullptr, l); }, gm_linear_free);
    auto workspace = owned<gm_workspace>(gm_workspace_new, gm_workspace_free);
    std::vector<float> x(gm_linear_k(layer.get()), 1.0f), y(gm_linear_n(layer.get()));
    check(gm_linear_forward(layer.get(), x.data(), x.size(), 1, nullptr, y.data(), y.size(), workspace.get(), nullptr));
    for (float value : y) std::printf("%.9g\n", value);
    auto receipt = owned<char>([&](char **r) { return gm_linear_receipt(layer.get(), r); }, gm_string_free);
    std::fprintf(stderr, "%s\n", receipt.get());
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
