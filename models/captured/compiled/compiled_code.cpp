#include "models/captured/compiled/compiled_code.h"

#include "base/error.h"
#include "models/captured/format/value_type.h"
#include "models/tensors/shape_text.h"

#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>
#include <torch/csrc/inductor/aoti_torch/tensor_converter.h>

#include <dlfcn.h>
#include <mutex>
#include <utility>

namespace stagecraft::captured {

struct CompiledCode::Library {
  using Create = std::int32_t (*)(void**, std::size_t, const char*, const char*);
  using Delete = std::int32_t (*)(void*);
  using Run = std::int32_t (*)(void*, AtenTensorHandle*, std::size_t, AtenTensorHandle*, std::size_t, void*,
                               void*);

  std::string path;
  std::size_t outputs = 0;
  Create create = nullptr;
  Delete destroy = nullptr;
  Run run = nullptr;
  std::mutex mutex;
  std::vector<void*> idle;  ///< instances that no call has

  template <class Function>
  void find(void* handle, const char* name, Function& function) const {
    function = reinterpret_cast<Function>(dlsym(handle, name));  // NOLINT(*-reinterpret-cast)
    if (function == nullptr) throw InputError({path, ""}, fmt::format("has no function {}", name));
  }

  void* take() {
    {
      const std::scoped_lock lock(mutex);
      if (!idle.empty()) {
        void* instance = idle.back();
        idle.pop_back();
        return instance;
      }
    }
    void* made = nullptr;
    if (create(&made, 1, "cpu", nullptr) != 0) throw InternalError(path + ": its code does not start");
    return made;
  }
  void give_back(void* instance) {
    const std::scoped_lock lock(mutex);
    idle.push_back(instance);
  }
};

CompiledCode::CompiledCode(const std::string& path, std::size_t outputs)
    : library_(std::make_unique<Library>()) {
  library_->path = path;
  library_->outputs = outputs;
  // It names no library of LibTorch, for libtorch.so would bring CUDA's: what it calls is in the one that
  // this program is linked with. It stays loaded, as LibTorch's own do.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
    throw InputError({path, ""}, fmt::format("cannot be loaded: {}", reason == nullptr ? "" : reason));
  }
  library_->find(handle, "AOTInductorModelContainerCreateWithDevice", library_->create);
  library_->find(handle, "AOTInductorModelContainerDelete", library_->destroy);
  library_->find(handle, "AOTInductorModelContainerRunSingleThreaded", library_->run);
}

CompiledCode::~CompiledCode() {
  for (void* instance : library_->idle) (void)library_->destroy(instance);
}

std::vector<at::Tensor> CompiledCode::run(std::vector<at::Tensor> inputs) const {
  std::vector<AtenTensorHandle> given = torch::aot_inductor::unsafe_alloc_new_handles_from_tensors(
      inputs);  // the code frees each behind its last use
  inputs.clear();
  std::vector<AtenTensorHandle> made(library_->outputs);
  void* instance = library_->take();
  const std::int32_t failed =
      library_->run(instance, given.data(), given.size(), made.data(), made.size(), nullptr, nullptr);
  if (failed != 0) throw InternalError(library_->path + ": its code failed; the reason is on stderr");
  library_->give_back(instance);
  return torch::aot_inductor::alloc_tensors_by_stealing_from_handles(made.data(), made.size());
}

std::vector<at::Tensor> CompiledRun::run(std::vector<at::Tensor> given) const {
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Input& input = inputs[i];
    at::Tensor& tensor = given[i];
    if (tensor.scalar_type() != input.dtype || tensor.sizes() != input.sizes || !tensor.device().is_cpu()) {
      throw InternalError(fmt::format("{}: input {} is {}{}, the code was made for {}{}", where, i,
                                      dtype_name(tensor.scalar_type()), shape_text(tensor.sizes()),
                                      dtype_name(input.dtype), shape_text(input.sizes)));
    }
    if (tensor.strides() != input.strides) {
      at::Tensor copy = at::empty_strided(input.sizes, input.strides, tensor.options());
      copy.copy_(tensor);
      tensor = std::move(copy);
    }
  }
  return code->run(std::move(given));
}

}  // namespace stagecraft::captured
