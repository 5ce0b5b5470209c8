#include "test/support/fake_accelerator.h"

#include "base/error.h"
#include "test/support/fake_recorder.h"
#include "test/support/fake_streams.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace stagecraft::test {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;  // LibTorch's name for a device that is not its own

thread_local std::int64_t waits = 0;
thread_local std::int64_t operators = 0;
thread_local bool device_is_stuck = false;
thread_local bool inside_operator = false;  // whose own copies to and from the CPU are none of a GPU's

thread_local std::function<void(bool begins)> around_operators;

/// Of the device's own operators, not of those within.
class Operator {
 public:
  Operator() : counts_(!inside_operator) {
    if (!counts_) return;
    ++operators;
    if (around_operators) around_operators(true);
  }
  ~Operator() {
    if (counts_ && around_operators) around_operators(false);
  }
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;

 private:
  bool counts_;
};

class Inside {
 public:
  Inside() : before_(std::exchange(inside_operator, true)) {}
  ~Inside() { inside_operator = before_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  bool before_;
};

void count_wait() {
  if (inside_operator) return;
  STAGECRAFT_CHECK(!device_is_stuck, "the host blocks for a device that will never be done");
  ++waits;
}

/// As a caching allocator: a block that is free again is had again, of several of a size class the one with the lowest
/// address, and none goes back before the pool does. Ranks are threads with a pool each; a block may come back on
/// another thread.
class BlockPool {
 public:
  ~BlockPool() {
    for (const auto& [size_class, blocks] : free_) {
      for (void* const block : blocks) ::operator delete(block, kAlign);
    }
  }
  void* take(std::size_t size_class) {
    {
      const std::scoped_lock lock(mutex_);
      std::set<void*>& free = free_[size_class];
      if (!free.empty()) return free.extract(free.begin()).value();
    }
    note_device_wide_wait(fmt::format("{} bytes more", size_class));
    return ::operator new(size_class, kAlign);
  }
  void give(std::size_t size_class, void* block) {
    const std::scoped_lock lock(mutex_);
    free_[size_class].insert(block);
  }

 private:
  static constexpr std::align_val_t kAlign{64};
  std::mutex mutex_;
  std::map<std::size_t, std::set<void*>> free_;
};

struct FirstTimes {
  std::set<std::string> used;
  std::shared_ptr<BlockPool> blocks = std::make_shared<BlockPool>();
  std::vector<std::string> waits;
  std::function<void()> wait;
};
FirstTimes& first_times() {
  thread_local FirstTimes its;
  return its;
}

struct PooledBlock {
  std::shared_ptr<BlockPool> pool;
  std::size_t size_class;
  void* memory;
};

/// Counts what is asked for, as CUDA's does: by all threads, and by recordings too.
class Memory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr block = memory_for(bytes);
    void* const data = block.get();
    if (bytes == 0) return block;
    const std::scoped_lock lock(mutex_);
    requested_.increase(bytes);
    return {data, new Counted{std::move(block), bytes}, &release, c10::Device(kType, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { note_device_wide_wait("unused memory goes"); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    const std::scoped_lock lock(mutex_);
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.requested_bytes.front() = requested_;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {
    const std::scoped_lock lock(mutex_);
    requested_.reset_peak();
  }

 private:
  struct Counted {
    c10::DataPtr block;
    std::size_t bytes;
  };
  static c10::DataPtr memory_for(std::size_t bytes) {
    if (Recorder* const its = recorder()) return its->allocate(bytes);
    FakeStreams::here().memory_was_allocated();
    constexpr std::size_t kStep = 512;
    const std::size_t size_class = (std::max<std::size_t>(bytes, 1) + kStep - 1) / kStep * kStep;
    const std::shared_ptr<BlockPool>& pool = first_times().blocks;
    void* const memory = pool->take(size_class);
    return {memory, new PooledBlock{pool, size_class, memory},
            [](void* context) {
              const std::unique_ptr<PooledBlock> its(static_cast<PooledBlock*>(context));
              its->pool->give(its->size_class, its->memory);
            },
            c10::Device(kType, 0)};
  }
  static void release(void* context);

  std::mutex mutex_;
  c10::CachingAllocator::Stat requested_;
};
Memory fake_memory;

void Memory::release(void* context) {
  const std::unique_ptr<Counted> counted(static_cast<Counted*>(context));
  const std::scoped_lock lock(fake_memory.mutex_);
  fake_memory.requested_.decrease(counted->bytes);
}

/// Events are numbers, from 1 up.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kType, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(FakeStreams::here().current()); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const c10::Stream before = getStream(getDevice());
    FakeStreams::here().set_current(next.id());
    return before;
  }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return stream(FakeStreams::here().make());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    FakeStreams::here().forget(number(*event));
    *event = reinterpret_cast<void*>(++newest_);
    FakeStreams::here().record(newest_, stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override {
    FakeStreams::here().wait(stream.id(), number(event));
  }
  /// The newest one is over when something newer is marked, or when somebody waits for it, if only by asking
  /// again and again.
  bool queryEvent(void* event) const override {
    constexpr int kAWait = 10;
    if (device_is_stuck) return false;
    asked_ = asked_for_ == number(event) ? asked_ + 1 : 1;
    asked_for_ = number(event);
    if (asked_ == kAWait && number(event) == newest_ && number(event) != waited_for_) synchronizeEvent(event);
    return (number(event) < newest_ || number(event) == waited_for_) &&
           FakeStreams::here().over(number(event));
  }
  void synchronizeEvent(void* event) const override {
    refuse_while_recording("waiting for an event");
    count_wait();
    waited_for_ = number(event);
    FakeStreams::here().carry_out(number(event));
  }
  /// A millisecond from each event to the next, and what was let pass; in float32, as CUDA tells it.
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    return static_cast<double>(static_cast<float>(time_of(number(second)) - time_of(number(first))));
  }
  static void let_time_pass(double milliseconds) { passed_.emplace_back(newest_ + 1, milliseconds); }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    FakeStreams::here().forget(number(event));
  }

 private:
  static double time_of(std::uintptr_t event) {
    auto time = static_cast<double>(event);
    for (const auto& [first, milliseconds] : passed_) time += first <= event ? milliseconds : 0;
    return time;
  }
  static std::uintptr_t number(void* event) { return reinterpret_cast<std::uintptr_t>(event); }
  c10::Stream stream(c10::StreamId id) const { return c10::Stream(c10::Stream::UNSAFE, getDevice(), id); }

  static thread_local std::uintptr_t newest_, waited_for_, asked_for_;
  static thread_local int asked_;
  static thread_local std::vector<std::pair<std::uintptr_t, double>> passed_;
};
thread_local std::vector<std::pair<std::uintptr_t, double>> Guard::passed_;
thread_local std::uintptr_t Guard::newest_ = 0, Guard::waited_for_ = 0, Guard::asked_for_ = 0;
thread_local int Guard::asked_ = 0;

bool on_fake_type(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kType; }

/// The same memory, as the CPU sees it.
at::Tensor seen_by_cpu(const at::Tensor& tensor) {
  if (!on_fake_type(tensor)) return tensor;
  return at::from_blob(
      const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), [tensor](void*) {},
      at::TensorOptions(at::kCPU).dtype(tensor.scalar_type()));
}

template <class Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) visit(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  }
  if (value.isList() && !value.isTensorList()) {  // of tensors that may be missing
    for (const c10::IValue& element : value.toListRef()) each_tensor(element, visit);
  }
}

void check_devices(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::size_t arguments = op.schema().arguments().size();
  for (std::size_t i = stack.size() - arguments; i < stack.size(); ++i) {
    const bool number = stack[i].isTensor() && stack[i].toTensor().is_cpu() && stack[i].toTensor().dim() == 0;
    each_tensor(stack[i], [&](const at::Tensor& tensor) {
      STAGECRAFT_CHECK(!tensor.defined() || on_fake_type(tensor) || number,
                       fmt::format("{}: a tensor of the {} beside one of the device",
                                   op.schema().operator_name().name, tensor.device().str()));
    });
  }
}

/// By types: a kernel is loaded when it is used first.
void note_use(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::vector<std::string> types;
  const std::size_t arguments = op.schema().arguments().size();
  for (std::size_t i = stack.size() - arguments; i < stack.size(); ++i) {
    std::optional<at::ScalarType> type;
    each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (tensor.defined() && !type) type = tensor.scalar_type();
    });
    if (type) types.emplace_back(c10::toString(*type));
  }
  const auto& name = op.schema().operator_name();
  const std::string use =
      fmt::format("first use of {}{}{} ({})", name.name, name.overload_name.empty() ? "" : ".",
                  name.overload_name, fmt::join(types, ", "));
  if (first_times().used.insert(use).second) note_device_wide_wait(use);
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Operator its;
  check_devices(op, *stack);
  if (recorder() == nullptr && !inside_operator) note_use(op, *stack);
  const Inside inside;
  if (Recorder* const recording = recorder()) return recording->add(op, stack);
  at::native::cpu_fallback(op, stack);
}

/// As LibTorch does for every device in deterministic mode: an operator as others, that a recording does again.
at::Tensor filled(at::Tensor memory) {
  const at::Context& context = at::globalContext();
  if (!context.deterministicAlgorithms() || !context.deterministicFillUninitializedMemory()) return memory;
  if (memory.is_floating_point()) return memory.fill_(std::numeric_limits<double>::quiet_NaN());
  return memory.fill_(memory.scalar_type() == at::kLong ? std::numeric_limits<std::int64_t>::max() : 1);
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return filled(at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &fake_memory,
                                          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                          dtype.value_or(at::kFloat), format));
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return filled(at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &fake_memory,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat)));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  const Operator its;
  if (Recorder* const recording = inside_operator ? nullptr : recorder()) {
    recording->add_copy(self, to);
    return to;
  }
  FakeStreams& streams = FakeStreams::here();
  if (!on_fake_type(self) && on_fake_type(to) && non_blocking && streams.current() != 0) {
    streams.begin_copy(to.mutable_data_ptr(), to.nbytes(),
                       [self, to] { seen_by_cpu(to).copy_(seen_by_cpu(self)); });
    return to;
  }
  if (on_fake_type(self) != on_fake_type(to) && !non_blocking) count_wait();
  seen_by_cpu(to).copy_(seen_by_cpu(self));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  if (self.sizes() != to.sizes()) {  // an output that the operator was given to make as large as it wants
    const at::Tensor memory_for_it = at::empty(self.sizes(), to.options());
    to.unsafeGetTensorImpl()->set_storage_keep_dtype(memory_for_it.storage());
    to.unsafeGetTensorImpl()->set_sizes_contiguous(self.sizes());
  }
  return copy_from(self, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  refuse_while_recording("reading a number");
  count_wait();
  return at::_local_scalar_dense(seen_by_cpu(self));
}

bool equal(const at::Tensor& a, const at::Tensor& b) {
  refuse_while_recording("reading whether tensors are equal");
  count_wait();
  return at::equal(seen_by_cpu(a), seen_by_cpu(b));
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("equal", &equal);
  // Composed of others for devices that have no kernel, in ways that only LibTorch's own devices know, or
  // where those have one.
  for (const char* name : {"convolution", "convolution_backward", "native_layer_norm", "_foreach_norm.Scalar",
                           "_foreach_mul_.Scalar", "_foreach_mul_.Tensor"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
}

}  // namespace

at::Device fake_accelerator() {
  static const bool registered = [] {
    c10::SetAllocator(kType, &fake_memory);
    return true;
  }();
  (void)registered;
  return {kType, 0};
}

std::int64_t host_waits() { return waits; }

const std::vector<std::string>& device_wide_waits() { return first_times().waits; }

void note_device_wide_wait(const std::string& why) {
  FirstTimes& its = first_times();
  its.waits.push_back(why);
  if (its.wait) its.wait();
}

void set_on_device_wide_wait(std::function<void()> wait) { first_times().wait = std::move(wait); }
bool inside_a_device_operator() { return inside_operator; }
std::int64_t device_operators() { return operators; }
void set_around_operators(std::function<void(bool begins)> call) { around_operators = std::move(call); }

void let_device_time_pass(double milliseconds) { Guard::let_time_pass(milliseconds); }

void let_device_stick(bool stuck) { device_is_stuck = stuck; }

}  // namespace stagecraft::test
